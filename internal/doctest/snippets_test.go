package doctest_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/doctest"
)

// around is the test file into which the Go code of the documents goes, at the places that begin with
// "//@". Workers end after their first run.
const around = `package snippets

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/belfrytest"
)

type Order struct{ Order int }

// start runs a node with a timer that a worker of the service orders gets at once.
func start(t *testing.T) (b *belfrytest.Belfry, ctx context.Context, cancel func(), e event.Event) {
	b = belfrytest.New(t, belfrytest.Running())
	ctx, cancel = context.WithCancel(t.Context())
	e = event.New()
	e.SetSource("/shop")
	e.SetType("order.timeout")
	e.SetID("order-1")
	if err := e.SetData(event.ApplicationJSON, Order{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Client().Add(ctx, e, belfry.After(0), belfry.ToWorker("orders")); err != nil {
		t.Fatal(err)
	}
	e.SetID("order-2")
	return b, ctx, cancel, e
}

func TestREADME(t *testing.T) {
	b, ctx, cancel, event := start(t)
	shopIsClosed := func() bool { return false }
	expire := func(context.Context, Order) error {
		cancel()
		return nil
	}
	//@README.md
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	c.Close()
}

func TestReference(t *testing.T) {
	b, ctx, cancel, event := start(t)
	var err error
	c := b.Client()
	handler := func(context.Context, *belfry.Run) error {
		cancel()
		return nil
	}
	//@docs/reference.md
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// startShop adds a reminder in 30 days. At the end of the test it has been called back.
func startShop(t *testing.T, c *belfry.Client) {
	called := make(chan string, 1)
	shop := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called <- r.URL.Path }))
	e := event.New()
	e.SetSource("/shop")
	e.SetType("reminder")
	e.SetID("reminder-1")
	if _, err := c.Add(t.Context(), e, belfry.After(30*24*time.Hour), belfry.WithCallback(shop.URL)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		shop.Close()
		if len(called) != 1 {
			t.Error("the reminder was not called back")
		}
	})
}

//@docs/dev.md
`

// TestSnippets runs the Go code of the documents, within around, by go test.
func TestSnippets(t *testing.T) {
	t.Parallel()
	code := around
	for _, b := range doctest.Blocks(t, "internal/doctest.TestSnippets") {
		place := "//@" + b.File + "\n"
		if strings.Count(code, place) != 1 {
			t.Fatalf("%s:%d: there is no place for the code of the file, or it has two blocks", b.File, b.Line)
		}
		code = strings.Replace(code, place, "//line "+b.File+":1\n"+b.Text(), 1)
	}
	code = strings.ReplaceAll(code, `"nats://127.0.0.1:4222"`, "b.URL()")
	dir, root := t.TempDir(), doctest.Root(t)
	file := filepath.Join(dir, "snippets_test.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, "internal/doctest/snippets/snippets_test.go"): file}})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{file: []byte(code), filepath.Join(dir, "overlay.json"): overlay} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "-overlay", filepath.Join(dir, "overlay.json"), "./internal/doctest/snippets")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count(string(out), "--- PASS") != 3 {
		t.Errorf("go test: %v\n%s\n%s", err, out, code)
	}
}
