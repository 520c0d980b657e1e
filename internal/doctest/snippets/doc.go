// Package snippets is empty: TestSnippets of package doctest puts the Go code of the documents here,
// by the flag -overlay of go test, and runs it.
package snippets
