package httpapi_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// testGuide runs the requests of docs/http.md in their order. Each must succeed, and be as the
// document says.
func testGuide(t *testing.T, n *node) {
	b, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(b), -1) {
		commands := strings.TrimSpace(block[1])
		ran += strings.Count(commands, "\n") + 1
		if strings.Contains(commands, "/v1/flows") || strings.Contains(commands, "/v1/calendars") {
			// They need no other block, and wait seconds until each change is in force.
			t.Run(strings.Fields(commands)[len(strings.Fields(commands))-1], func(t *testing.T) {
				t.Parallel()
				runBlock(t, n, commands)
			})
			continue
		}
		runBlock(t, n, commands)
	}
	if ran < 35 {
		t.Errorf("the guide has only %d requests", ran)
	}
}

// runBlock runs the requests of a block.
func runBlock(t *testing.T, n *node, commands string) {
	t.Helper()
	for line := range strings.Lines(commands) {
		method, path, body, header := curl(t, strings.TrimSpace(line))
		if r := n.send(t, method, path, body, header...); r.status >= 300 {
			t.Errorf("%s: got status %d: %s", line, r.status, r.body)
		}
	}
}

// curl returns the request that a curl command sends, of the options that the guide uses.
func curl(t *testing.T, line string) (method, path, body string, header []string) {
	t.Helper()
	args, ok := strings.CutPrefix(line, "curl ")
	if !ok {
		t.Fatalf("%q is not a curl command", line)
	}
	var words []string
	for _, w := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(args, -1) {
		words = append(words, strings.Trim(w, "'"))
	}
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
	for i := 0; i < len(words); i++ {
		switch words[i] {
		case "-X":
			i++
			method = words[i]
		case "-H":
			i++
			name, value, _ := strings.Cut(words[i], ": ")
			header = append(header, name, value)
		case "-d", "--data-binary":
			i++
			send(words[i], "application/x-www-form-urlencoded")
		case "--json":
			i++
			send(words[i], "application/json")
		default:
			path, ok = strings.CutPrefix(words[i], "http://localhost:8420")
			if !ok {
				t.Fatalf("%s: unknown argument %q", line, words[i])
			}
		}
	}
	return method, path, body, header
}
