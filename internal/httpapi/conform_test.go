package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/internal/httpapi"
)

// document checks requests and answers against openapi.yaml. It knows the parts of OpenAPI 3.1
// that openapi.yaml uses; their schemas are JSON Schemas.
type document struct {
	root     map[string]any
	compiler *jsonschema.Compiler

	mu      sync.Mutex
	schemas map[string]*jsonschema.Schema
	// used are the operations that a request has reached and that has answered without an error.
	used map[string]bool
}

func readDocument() (*document, error) {
	var parsed any
	if err := yaml.Unmarshal(httpapi.Document, &parsed); err != nil {
		return nil, err
	}
	b, err := json.Marshal(parsed)
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("belfry:openapi", doc); err != nil {
		return nil, err
	}
	return &document{root: doc.(map[string]any), compiler: c, schemas: map[string]*jsonschema.Schema{}, used: map[string]bool{}}, nil
}

// the returns the document, which all tests share.
var the = sync.OnceValues(readDocument)

var methods = []string{"get", "put", "post", "delete", "options", "head", "patch", "trace"}

// operations returns the operations of the document, as httpapi.Routes.
func (d *document) operations() (out []string) {
	for path, item := range d.root["paths"].(map[string]any) {
		for method := range item.(map[string]any) {
			if slices.Contains(methods, method) {
				out = append(out, strings.ToUpper(method)+" "+path)
			}
		}
	}
	return out
}

// at returns what a pointer of steps leads to, and its pointer, following references.
func (d *document) at(pointer string, steps ...string) (any, string) {
	var v any = d.root
	for _, step := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
		v = d.step(v, strings.NewReplacer("~1", "/", "~0", "~").Replace(step))
	}
	v, pointer = d.follow(v, pointer)
	for _, step := range steps {
		v = d.step(v, step)
		v, pointer = d.follow(v, pointer+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(step))
	}
	return v, pointer
}

func (d *document) step(v any, step string) any {
	switch v := v.(type) {
	case map[string]any:
		return v[step]
	case []any:
		i, err := strconv.Atoi(step)
		if err == nil && i < len(v) {
			return v[i]
		}
	}
	return nil
}

func (d *document) follow(v any, pointer string) (any, string) {
	if m, ok := v.(map[string]any); ok {
		if ref, ok := m["$ref"].(string); ok {
			return d.at(strings.TrimPrefix(ref, "#"))
		}
	}
	return v, pointer
}

// validate checks a value against the schema at a pointer.
func (d *document) validate(pointer string, value any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.schemas[pointer]
	if s == nil {
		var err error
		if s, err = d.compiler.Compile("belfry:openapi#" + pointer); err != nil {
			return err
		}
		d.schemas[pointer] = s
	}
	return s.Validate(value)
}

// operation returns the pointer of the operation of a request, and the template of its path; both
// are empty if the document has none.
func (d *document) operation(method, path string) (pointer, template string) {
	for template, item := range d.root["paths"].(map[string]any) {
		want, got := strings.Split(template, "/"), strings.Split(path, "/")
		same := slices.EqualFunc(want, got, func(w, g string) bool { return w == g || strings.HasPrefix(w, "{") && g != "" })
		if _, has := item.(map[string]any)[strings.ToLower(method)]; same && has {
			return "/paths/" + strings.ReplaceAll(template, "/", "~1") + "/" + strings.ToLower(method), template
		}
	}
	return "", ""
}

// checkRequest returns an error for a request that an operation does not describe.
func (d *document) checkRequest(pointer string, r *http.Request, body []byte) error {
	known := map[string]bool{}
	for _, at := range []string{pointer, pointer[:strings.LastIndex(pointer, "/")]} {
		list, _ := d.at(at, "parameters")
		params, _ := list.([]any)
		for i := range params {
			p, where := d.at(at, "parameters", strconv.Itoa(i))
			param := p.(map[string]any)
			name := fmt.Sprint(param["name"])
			var values []string
			switch param["in"] {
			case "query":
				known[name] = true
				values = r.URL.Query()[name]
			case "header":
				values = r.Header.Values(name)
			}
			if err := d.checkParameter(where, param, values); err != nil {
				return fmt.Errorf("parameter %s: %w", name, err)
			}
		}
	}
	for name := range r.URL.Query() {
		if !known[name] {
			return fmt.Errorf("parameter %s is not in the document", name)
		}
	}
	if v, _ := d.at(pointer, "requestBody"); v == nil {
		if len(body) > 0 {
			return fmt.Errorf("a body, and the document has none")
		}
		return nil
	}
	if r.URL.RawQuery != "" && pointer == "/paths/~1v1~1timers/post" {
		return nil // the body is the data
	}
	required, where := d.at(pointer, "requestBody", "required")
	if len(body) == 0 && required != true {
		return nil
	}
	where = strings.TrimSuffix(where, "/required")
	return d.checkBody(where, r.Header.Get("Content-Type"), body)
}

func (d *document) checkParameter(pointer string, param map[string]any, values []string) error {
	schema, where := d.at(pointer, "schema")
	kind := schema.(map[string]any)["type"]
	if kind == "array" {
		list := make([]any, len(values))
		for i, v := range values {
			list[i] = v
		}
		return d.validate(where, list)
	}
	for _, text := range values {
		var value any = text
		switch kind {
		case "integer":
			value = json.Number(text)
			if _, err := strconv.Atoi(text); err != nil {
				return err
			}
		case "boolean":
			b, err := strconv.ParseBool(text)
			if err != nil {
				return err
			}
			value = b
		}
		if err := d.validate(where, value); err != nil {
			return err
		}
	}
	if len(values) > 1 {
		return fmt.Errorf("%v has several values", param["name"])
	}
	return nil
}

// checkBody checks a body against the schema of its media type.
func (d *document) checkBody(pointer, contentType string, body []byte) error {
	media, _, err := mime.ParseMediaType(contentType)
	if contentType != "" && err != nil {
		return err
	}
	content, _ := d.at(pointer, "content")
	types, _ := content.(map[string]any)
	if _, ok := types[media]; !ok {
		if media = "*/*"; types[media] == nil {
			return fmt.Errorf("content type %q is not one of %v", contentType, slices.Collect(maps.Keys(types)))
		}
		return nil
	}
	if !strings.HasSuffix(media, "json") {
		return nil
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %s", err, body)
	}
	schema, where := d.at(pointer, "content", media, "schema")
	if schema == nil {
		return fmt.Errorf("no schema at %s", pointer)
	}
	return d.validate(where, value)
}

// checkAnswer returns an error for an answer that an operation does not describe.
func (d *document) checkAnswer(pointer string, r *http.Response, body []byte) error {
	key := strconv.Itoa(r.StatusCode)
	if v, _ := d.at(pointer, "responses", key); v == nil {
		key = "default"
	}
	found, where := d.at(pointer, "responses", key)
	if found == nil {
		return fmt.Errorf("status %d is not in the document", r.StatusCode)
	}
	if key == "default" && r.StatusCode < 400 {
		return fmt.Errorf("status %d is not in the document, and is no error", r.StatusCode)
	}
	headers, _ := found.(map[string]any)["headers"].(map[string]any)
	for _, name := range []string{"Location", "ETag", "Retry-After"} {
		value := r.Header.Get(name)
		switch {
		case value != "" && headers[name] == nil:
			return fmt.Errorf("header %s is not in the document", name)
		case value != "":
			_, at := d.at(where, "headers", name, "schema")
			if err := d.validate(at, value); err != nil {
				return err
			}
		case headers[name] != nil && key == "201":
			return fmt.Errorf("header %s is missing", name)
		}
	}
	if r.StatusCode == http.StatusNotModified {
		if len(body) > 0 {
			return fmt.Errorf("status 304 with a body")
		}
		return nil
	}
	return d.checkBody(where, r.Header.Get("Content-Type"), body)
}

// client sends requests and checks them and their answers against the document. A request that
// succeeds must be as described; every answer must be.
type client struct {
	base string
	http http.Client
}

func newClient(t *testing.T, base string) *client {
	c := &client{base: base, http: http.Client{Transport: &http.Transport{}, Timeout: time.Minute}}
	t.Cleanup(c.http.CloseIdleConnections)
	return c
}

// reply is an answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// send sends a request. header has names and values in turns.
func (c *client) send(t *testing.T, method, path, body string, header ...string) reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Add(header[i], header[i+1])
	}
	resp, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out := reply{status: resp.StatusCode, header: resp.Header}
	if out.body, err = io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	conform(t, r, []byte(body), resp, out.body)
	return out
}

// conform fails the test if the document does not describe a request and its answer.
func conform(t *testing.T, r *http.Request, body []byte, resp *http.Response, answer []byte) {
	t.Helper()
	d, err := the()
	if err != nil {
		t.Fatal(err)
	}
	pointer, template := d.operation(r.Method, r.URL.EscapedPath())
	if pointer == "" {
		if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s %s is not in the document: status %d", r.Method, r.URL.Path, resp.StatusCode)
		}
		if err := d.checkBody("/components/responses/Problem", resp.Header.Get("Content-Type"), answer); err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		return
	}
	if resp.StatusCode < 400 {
		if err := d.checkRequest(pointer, r, body); err != nil {
			t.Errorf("%s %s succeeds, and is not as the document says: %v", r.Method, r.URL, err)
		}
		d.mu.Lock()
		d.used[r.Method+" "+template] = true
		d.mu.Unlock()
	}
	if err := d.checkAnswer(pointer, resp, answer); err != nil {
		t.Errorf("%s %s: the answer is not as the document says: %v\n%s", r.Method, r.URL, err, answer)
	}
}

// TestDocumentHasEveryRoute: the document has the routes of the package, and no others.
func TestDocumentHasEveryRoute(t *testing.T) {
	t.Parallel()
	d, err := the()
	if err != nil {
		t.Fatal(err)
	}
	documented := d.operations()
	for _, route := range httpapi.Routes() {
		if !slices.Contains(documented, route) {
			t.Errorf("openapi.yaml lacks %s", route)
		}
	}
	for _, op := range documented {
		if !slices.Contains(httpapi.Routes(), op) {
			t.Errorf("openapi.yaml describes %s, which does not exist", op)
		}
	}
}
