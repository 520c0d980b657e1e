package doctest

import (
	"regexp"
	"strings"
	"testing"
)

// api is the address of a node in the documents.
const api = "http://localhost:8420"

// Curl returns the request that a curl command of a document sends to a node, of the options
// that the documents use. header has names and values in turn; path begins after the address.
func Curl(t *testing.T, line string) (method, path, body string, header []string) {
	t.Helper()
	args, ok := strings.CutPrefix(line, "curl ")
	if !ok {
		t.Fatalf("%q is not a curl command", line)
	}
	all := words(args)
	method = "GET"
	send := func(data, kind string) {
		body = data
		if method == "GET" {
			method = "POST"
		}
		if !strings.Contains(strings.Join(header, " "), "Content-Type") {
			header = append(header, "Content-Type", kind)
		}
	}
	for i := 0; i < len(all); i++ {
		switch all[i] {
		case "-X":
			i++
			method = all[i]
		case "-H":
			i++
			name, value, _ := strings.Cut(all[i], ": ")
			header = append(header, name, value)
		case "-d", "--data-binary":
			i++
			send(all[i], "application/x-www-form-urlencoded")
		case "--json":
			i++
			send(all[i], "application/json")
		default:
			path, ok = strings.CutPrefix(all[i], api)
			if !ok {
				t.Fatalf("%s: unknown argument %q", line, all[i])
			}
		}
	}
	return method, path, body, header
}

// words returns the words of a command line, quoted with ' or ", or not.
func words(line string) (all []string) {
	for _, w := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
		all = append(all, strings.Trim(w, `'"`))
	}
	return all
}
