package clients

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const root = "../.."

// object has the members of an object, and whether each is required.
type object map[string]bool

// types are the types of the clients by their place in the OpenAPI document. A type whose name differs in Python
// has both names.
var types = []struct{ place, js, python string }{
	{"components schemas NewTimer", "NewTimer", ""},
	{"components schemas Added", "Added", ""},
	{"components schemas Timer", "Timer", ""},
	{"components schemas Timer properties last_attempts items", "Attempt", ""},
	{"components schemas Timer properties outcome", "Outcome", ""},
	{"components schemas Timer properties history items", "Operation", ""},
	{"components schemas Timer properties flow", "FlowWait", ""},
	{"components schemas Timer properties order", "OrderWait", ""},
	{"components schemas Timer properties schedule", "Schedule", ""},
	{"components schemas Timer properties schedule properties overdue items", "Overdue", ""},
	{"components schemas Timer properties schedule properties last", "LastRun", ""},
	{"components schemas Timer properties schedule properties backfill", "Backfill", ""},
	{"components schemas Timer properties origin", "Origin", ""},
	{"components schemas Timer properties claim", "Claim", ""},
	{"components schemas TimerPage", "TimerPage", ""},
	{"components schemas SearchPage", "SearchPage", ""},
	{"components schemas Run", "ScheduleRun", ""},
	{"components schemas Outcome", "Outcome", ""},
	{"components schemas Answer", "Answer", "WhyAnswer"},
	{"components schemas DeadLetter", "DeadLetter", ""},
	{"components schemas FiredEvent", "FiredEvent", ""},
	{"paths /v1/dead-letters/replay post responses 200 content application/json schema", "Replayed", ""},
}

// TestFields: the types of the clients have exactly the members that the OpenAPI document has.
func TestFields(t *testing.T) {
	t.Parallel()
	doc := document(t)
	t.Run("javascript", func(t *testing.T) {
		t.Parallel()
		declared := interfaces(t)
		for _, typ := range types {
			compare(t, typ.js, declared[typ.js], doc.object(t, typ.place))
		}
		compare(t, "SearchQuery", declared["SearchQuery"], doc.query(t, "/v1/timers", "get"))
		compare(t, "DeadLetterQuery", declared["DeadLetterQuery"], doc.query(t, "/v1/dead-letters", "get"))
		equal(t, "State", regexp.MustCompile(`"(\w+)"`).FindAllString(firstLine(t, "clients/js/index.d.ts", "export type State = "), -1), doc.states(t))
		equal(t, "errorClasses", errorClasses(t), codes(t))
	})
	t.Run("python", func(t *testing.T) {
		t.Parallel()
		python := program(t, "python3")
		if python == "" {
			t.Skip("python3 is not installed")
		}
		declared := inspect(t, python)
		for _, typ := range types {
			name := typ.js
			if typ.python != "" {
				name = typ.python
			}
			compare(t, name, declared.Types[name], doc.object(t, typ.place))
		}
		compare(t, "Client.add", declared.Add, doc.object(t, "components schemas NewTimer"))
		compare(t, "Client.search", declared.Search, doc.query(t, "/v1/timers", "get"))
		compare(t, "Client.dead_letters", declared.DeadLetters, doc.query(t, "/v1/dead-letters", "get"))
		equal(t, "State", declared.States, doc.states(t))
		equal(t, "ERROR_CLASSES", declared.Codes, codes(t))
	})
}

// openapi is the OpenAPI document, or a part of it.
type openapi map[string]any

func document(t *testing.T) openapi {
	t.Helper()
	var doc map[string]any
	if err := yaml.Unmarshal(read(t, "internal/httpapi/openapi.yaml"), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// part returns a part of the document by the names that lead to it, with blanks between them.
func (d openapi) part(t *testing.T, place string) openapi {
	t.Helper()
	at := map[string]any(d)
	for _, name := range strings.Fields(place) {
		next, ok := at[name].(map[string]any)
		if !ok {
			t.Fatalf("the document has no %s in %s", name, place)
		}
		at = next
	}
	return at
}

// object returns the members of the schema at a place.
func (d openapi) object(t *testing.T, place string) object {
	t.Helper()
	schema := d.part(t, place)
	required, _ := schema["required"].([]any)
	out := object{}
	properties, _ := schema["properties"].(map[string]any)
	for name := range properties {
		out[name] = slices.Contains(required, any(name))
	}
	if len(out) < 2 {
		t.Fatalf("%s has the members %v", place, out)
	}
	return out
}

// query returns the parameters of the query of an operation; none is required.
func (d openapi) query(t *testing.T, path, method string) object {
	t.Helper()
	out := object{}
	for _, p := range d.part(t, "paths "+path+" "+method)["parameters"].([]any) {
		parameter := openapi(p.(map[string]any))
		if ref, ok := parameter["$ref"].(string); ok {
			parameter = d.part(t, strings.ReplaceAll(strings.TrimPrefix(ref, "#/"), "/", " "))
		}
		// claim is for a single timer: the clients' get has it.
		if parameter["in"] == "query" && parameter["name"] != "claim" {
			out[parameter["name"].(string)] = false
		}
	}
	return out
}

// states returns the states of a timer.
func (d openapi) states(t *testing.T) (states []string) {
	t.Helper()
	for _, s := range d.part(t, "components schemas State")["enum"].([]any) {
		states = append(states, s.(string))
	}
	return states
}

// interfaces returns the interfaces of index.d.ts, which has one member a line.
func interfaces(t *testing.T) map[string]object {
	t.Helper()
	out := map[string]object{}
	for _, m := range regexp.MustCompile(`(?ms)^export interface (\w+)(?: extends (\w+))? \{\n(.*?)^\}`).FindAllStringSubmatch(string(read(t, "clients/js/index.d.ts")), -1) {
		members := object{}
		for name, required := range out[m[2]] {
			members[name] = required
		}
		for _, member := range regexp.MustCompile(`(?m)^  (\w+)(\??): `).FindAllStringSubmatch(m[3], -1) {
			members[member[1]] = member[2] == ""
		}
		out[m[1]] = members
	}
	return out
}

// errorClasses returns the codes of errorClasses in errors.js.
func errorClasses(t *testing.T) (codes []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^  (\w+): \w*Error,$`).FindAllStringSubmatch(string(read(t, "clients/js/src/errors.js")), -1) {
		codes = append(codes, m[1])
	}
	return codes
}

// codes returns the codes of errors in docs/http.md.
func codes(t *testing.T) (codes []string) {
	t.Helper()
	for _, m := range regexp.MustCompile("(?m)^\\| <a id=\"(\\w+)\"></a>").FindAllStringSubmatch(string(read(t, "docs/http.md")), -1) {
		codes = append(codes, m[1])
	}
	if len(codes) < 15 {
		t.Fatalf("docs/http.md has only the codes %v", codes)
	}
	return codes
}

// declarations are the types of the Python client, as its own interpreter sees them.
type declarations struct {
	Types                    map[string]object
	Add, Search, DeadLetters object
	States, Codes            []string
}

const inspection = `
import inspect, json, typing, belfry, belfry.types as t

def parameters(method, *without):
    return {p.rstrip("_"): False for p in inspect.signature(method).parameters if p not in ("self", *without)}

print(json.dumps({
    "Types": {n: {m: m in c.__required_keys__ for m in c.__annotations__} for n, c in vars(t).items() if hasattr(c, "__required_keys__")},
    "Add": parameters(belfry.Client.add, "idempotency_key"),
    "Search": parameters(belfry.Client.search),
    "DeadLetters": parameters(belfry.Client.dead_letters),
    "States": typing.get_args(t.State),
    "Codes": list(belfry.ERROR_CLASSES),
}))`

func inspect(t *testing.T, python string) (d declarations) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), python, "-c", inspection)
	cmd.Dir = filepath.Join(root, "clients/python")
	cmd.Env = append(os.Environ(), "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("inspect the Python client: %v", err)
	}
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// compare compares the members of a type of a client with those of the document.
func compare(t *testing.T, name string, got, want object) {
	t.Helper()
	if got == nil {
		t.Errorf("the client has no type %s", name)
		return
	}
	for member, required := range want {
		if optional, ok := got[member]; !ok {
			t.Errorf("%s lacks the member %s of the OpenAPI document", name, member)
		} else if optional != required {
			t.Errorf("%s.%s: required is %t, but %t in the OpenAPI document", name, member, optional, required)
		}
	}
	for member := range got {
		if _, ok := want[member]; !ok {
			t.Errorf("%s has the member %s, which the OpenAPI document lacks", name, member)
		}
	}
}

// equal compares lists whatever their order and quotes.
func equal(t *testing.T, name string, got, want []string) {
	t.Helper()
	sorted := func(list []string) []string {
		out := make([]string, len(list))
		for i, s := range list {
			out[i] = strings.Trim(s, `"`)
		}
		slices.Sort(out)
		return out
	}
	if g, w := sorted(got), sorted(want); !slices.Equal(g, w) {
		t.Errorf("%s: got %v, want %v", name, g, w)
	}
}

// firstLine returns the line of a file that begins with a text.
func firstLine(t *testing.T, path, start string) string {
	t.Helper()
	for line := range strings.Lines(string(read(t, path))) {
		if strings.HasPrefix(line, start) {
			return line
		}
	}
	t.Fatalf("%s has no line that begins with %q", path, start)
	return ""
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
