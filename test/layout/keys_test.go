package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// keyWords are the words of the keys in requests and answers, sorted. A key is one of them, or several with an underscore
// between them: last_attempts, not lastattempts. Before a word is added here, check that it is one word in the usage of
// the field, such as backfill or callback.
var keyWords = strings.Fields(`
	accepted account action add added adds after again alive allow answers applied as asked at attempt attempts
	attribute attributes back backfill base64 batch before behind belfry bucket buckets burst by bytes calendar calendars
	callbacks catching catchup changed changes check checks circuit claim clock clustered code commit config consumer
	consumers cores count counts current cursor damage damaged data dates dead deadline decided decisions deferrals desc
	description detail died disk do done drained dry due duplicate endless entries epoch error errors event events
	evidence except expect expected expired expires exported failing fate findings fired first flight formats found from
	frozen gap go grace hash head held history hold holds host id in jitter keys kind known lag last lateness leader
	least level limits line lines local loss lost mark matched max memory message messages minute missed missing more
	moved ms n name nats new newer newest next node nodes note noted notes now of offline ok oldest only op open order
	origin others outcome overdue overtaken owner parallel partial past pause paused pending per phase place platform
	pointer probe probes problem problems pulls q rate reads ready reason reasons record records redelivered refused
	reindexed rejected remark removed repair replayed replicas request resolved response results retry revision roles
	run runs schedule scheduled scheduler schedules scopes search second sequence sequences server service services
	shard shards share shared signature silent since size skipped slot sort source started state status steps stopped stored
	stream streams subject target tenant text time timer timers times title to token took total totals trigger triggered
	trimmed type tzdata uncounted unknown unread until up url user version waiting waits warnings wheel why width writes
	zones`)

// otherKeys are the parts of the program whose keys are not those of the API, with the reason: a folder, a file, or a
// file and a type. A stored format keeps its keys, because nodes of other builds read it.
var otherKeys = map[string]string{
	"internal/bench/":                          "files of the measuring tool",
	"cmd/belfry/tenants.go printedTenants":     "settings, named as in the configuration file",
	"cmd/belfry/users.go printedUsers":         "settings, named as in the configuration file",
	"examples/":                                "answers of a user's program",
	"functions/natscall/puback.go":             "JetStream's publish acknowledgement",
	"internal/backup/":                         "the manifest of a backup, which later builds restore",
	"internal/doctor/boundary.go ReadBoundary": "the monitoring of the NATS server",
	"internal/flow/":                           "stored in bucket flows",
	"internal/jet/":                            "JetStream's API",
	"internal/mutate/":                         "an overlay of the Go command",
	"internal/natstest/":                       "protocol of the NATS server",
	"internal/oidc/":                           "OpenID Connect",
	"internal/oidctest/":                       "OpenID Connect",
	"internal/order/":                          "stored in bucket flows",
	"internal/sim/":                            "a test",
	"internal/store/api.go Clock":              "stored in bucket clock",
	"internal/store/api.go Presence":           "stored in bucket clock",
	"internal/store/calendars.go":              "stored in bucket calendars",
	"internal/store/clock.go":                  "stored in bucket clock",
	"internal/store/development.go":            "stored in bucket clock",
	"internal/store/flowholds.go":              "stored in bucket flows",
	"internal/store/flows.go":                  "stored in bucket flows",
	"internal/store/flowstates.go":             "stored in bucket flows",
	"internal/store/meta.go":                   "stored in bucket clock",
	"internal/store/orders.go":                 "stored in bucket flows",
	"internal/store/pendingcounts.go":          "stored in bucket flows",
	"internal/store/storetest/":                "damaged values of a test",
	"internal/store/summed.go":                 "the checksum of stored values",
	"internal/store/targetrates.go":            "stored in bucket flows",
	"router/natsapi/caller.go requestInfo":     "a header of the NATS server",
	"test/":                                    "a test",
}

// keyDocuments describe the requests and answers, and the events.
var keyDocuments = []string{
	"internal/httpapi/openapi.yaml", "schemas/asyncapi.yaml",
	"schemas/json/add.schema.json", "schemas/json/fired.schema.json", "schemas/json/overdue.schema.json", "schemas/json/timer.schema.json",
}

// TestKeys: a key of a request or answer is lower case, with an underscore between its words, or the name of an attribute,
// which CloudEvents writes without underscores.
func TestKeys(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(keyWords) || len(slices.Compact(slices.Clone(keyWords))) != len(keyWords) {
		t.Error("keyWords are not sorted, or one occurs twice")
	}
	documents := map[string]any{}
	for _, file := range keyDocuments {
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		var doc any
		if err := yaml.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		documents[file] = doc
	}
	keys, attributes := goKeys(t)
	if len(keys) < 400 {
		t.Fatalf("the program has only %d keys", len(keys))
	}
	for _, file := range keyDocuments {
		found := documentKeys(documents[file], nil)
		if len(found) < 10 {
			t.Errorf("%s has only the keys %v", file, found)
		}
		for _, name := range found {
			keys = append(keys, key{name, file})
		}
	}

	names := attributeNames(t, attributes, documents["internal/httpapi/openapi.yaml"])
	used := map[string]bool{}
	for _, k := range keys {
		if names[k.name] {
			continue
		}
		for _, word := range strings.Split(k.name, "_") {
			if used[word] = true; !slices.Contains(keyWords, word) {
				t.Errorf("%s: the key %q has the word %q, which is not in keyWords: write two words with an underscore, or add the word", k.place, k.name, word)
			}
		}
	}
	for _, word := range keyWords {
		if !used[word] {
			t.Errorf("no key has the word %q of keyWords", word)
		}
	}
}

// attributeNames returns the names of attributes that a key may have: in full, and without the prefix if POST /v1/timers
// has such a field.
func attributeNames(t *testing.T, attributes []string, openapi any) map[string]bool {
	t.Helper()
	if len(attributes) < 30 {
		t.Fatalf("package schemas has only the attributes %v", attributes)
	}
	names := map[string]bool{"specversion": true, "dataschema": true, "datacontenttype": true}
	node := openapi
	for _, name := range []string{"components", "schemas", "NewTimer", "properties"} {
		node = node.(map[string]any)[name]
	}
	fields := node.(map[string]any)
	for _, full := range attributes {
		names[full] = true
		short := strings.TrimPrefix(full, "timer")
		if _, ok := fields[short]; ok {
			names[short] = true
		}
	}
	if !names["maxattempts"] || names["errorcode"] {
		t.Errorf("the names of attributes are %v", slices.Sorted(maps.Keys(names)))
	}
	return names
}

// key is a key with its place, a file or a file and a type.
type key struct{ name, place string }

// goKeys returns the keys in the source of the program, and the names of attributes in package schemas.
func goKeys(t *testing.T) (keys []key, attributes []string) {
	t.Helper()
	exempt := map[string]bool{}
	for _, file := range files(t, ".go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			for name, node := range declared(decl) {
				found := nodeKeys(node)
				if path.Dir(file) == "schemas" && strings.HasPrefix(name, "Attr") {
					attributes = append(attributes, constant(node)...)
				}
				if place, ok := otherPlace(file, name); ok {
					exempt[place] = exempt[place] || len(found) > 0
					continue
				}
				for _, k := range found {
					keys = append(keys, key{k, file + " " + name})
				}
			}
		}
	}
	for place := range otherKeys {
		if !exempt[place] {
			t.Errorf("otherKeys names %s, which has no keys", place)
		}
	}
	return keys, attributes
}

// otherPlace returns the key of otherKeys for a declaration.
func otherPlace(file, name string) (string, bool) {
	for place := range otherKeys {
		if place == file || place == file+" "+name || strings.HasSuffix(place, "/") && strings.HasPrefix(file, place) {
			return place, true
		}
	}
	return "", false
}

// declared returns the parts of a declaration by name.
func declared(decl ast.Decl) map[string]ast.Node {
	parts := map[string]ast.Node{}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		parts[d.Name.Name] = d
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				parts[s.Name.Name] = s
			case *ast.ValueSpec:
				parts[s.Names[0].Name] = s
			}
		}
	}
	return parts
}

// constant returns the value of a string constant.
func constant(node ast.Node) (values []string) {
	if s, ok := node.(*ast.ValueSpec); ok && len(s.Values) == 1 {
		if text, ok := literal(s.Values[0]); ok {
			values = append(values, text)
		}
	}
	return values
}

func literal(node ast.Node) (string, bool) {
	lit, ok := node.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// written matches a key of JSON that a string literal has.
var written = regexp.MustCompile(`"([A-Za-z0-9_]+)":`)

// nodeKeys returns the keys below a node: tags of fields, JSON in strings, and keys of maps that become JSON.
func nodeKeys(node ast.Node) (keys []string) {
	ast.Inspect(node, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Tag != nil {
				tag, _ := strconv.Unquote(n.Tag.Value)
				name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
				if name != "" && name != "-" {
					keys = append(keys, name)
				}
			}
			return n.Tag == nil || n.Type != nil // a field's type may be a struct
		case *ast.BasicLit:
			text, _ := literal(n)
			for _, m := range written.FindAllStringSubmatch(text, -1) {
				keys = append(keys, m[1])
			}
		case *ast.CompositeLit:
			if m, ok := n.Type.(*ast.MapType); ok && isAny(m.Value) {
				keys = append(keys, mapKeys(n)...)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "printJSON" || f.Sel.Name == "answer" || f.Sel.Name == "Marshal") {
				for _, arg := range n.Args {
					if lit, ok := arg.(*ast.CompositeLit); ok {
						if m, ok := lit.Type.(*ast.MapType); ok && !isAny(m.Value) {
							keys = append(keys, mapKeys(lit)...)
						}
					}
				}
			}
		}
		return true
	})
	return keys
}

func isAny(node ast.Expr) bool {
	id, ok := node.(*ast.Ident)
	return ok && id.Name == "any"
}

// mapKeys returns the literal keys of a map.
func mapKeys(lit *ast.CompositeLit) (keys []string) {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if text, ok := literal(kv.Key); ok {
				keys = append(keys, text)
			}
		}
	}
	return keys
}

// documentKeys appends the properties of all schemas in a document, and the parameters of queries. Headers are not keys.
func documentKeys(node any, keys []string) []string {
	switch n := node.(type) {
	case map[string]any:
		if name, ok := n["name"].(string); ok && n["in"] == "query" {
			keys = append(keys, name)
		}
		for member, value := range n {
			if properties, ok := value.(map[string]any); ok && member == "properties" {
				keys = slices.AppendSeq(keys, maps.Keys(properties))
			}
			if member != "headers" {
				keys = documentKeys(value, keys)
			}
		}
	case []any:
		for _, value := range n {
			keys = documentKeys(value, keys)
		}
	}
	return keys
}
