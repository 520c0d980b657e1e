// Package clients tests the clients of other languages, in the folder clients: their own suites against a real node, their
// types against the OpenAPI document, and their guides against the examples that the suites run. It also runs the Go
// programs of the guides, in the folder examples.
//
// A suite is skipped without its language: node, with the devDependencies of clients/js (npm ci), or python3. With
// BELFRY_CLIENTS=required it fails instead.
package clients
