package console_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/console"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestSlowForms: clients that send a part of a form and then nothing, as many as there are permits, do not
// keep others out.
func TestSlowForms(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, startNode(t, nil))
	for range console.MaxRequests {
		b.sendPart(t, "", "in=1h")
	}
	if p := b.sendOnce(t, http.MethodGet, "/timers", nil); p.status != http.StatusOK {
		t.Errorf("another client: got %d %s, want 200", p.status, p.body)
	}
}

// TestFormShare: the forms of a token that are not complete take no more memory than its share, and other
// tokens are served meanwhile. Forms that were answered take none.
func TestFormShare(t *testing.T) {
	t.Parallel()
	set, secrets := tokens(t, token.Token{Name: "ci", Scopes: token.Scopes{"read", "write"}}, token.Token{Name: "other", Scopes: token.Scopes{"read", "write"}})
	b := newBrowser(t, startNode(t, func(o *app.Options) { o.HTTPTokens = set }))
	post := func(name, timer string) page {
		return b.sendOnce(t, http.MethodPost, "/timers/cancel", form("timer", timer), "Authorization", "Bearer "+secrets[name])
	}
	const beyond = 16<<20/console.MaxForm + 1
	for range beyond {
		post("ci", strings.Repeat("x", console.MaxForm-100)).want(t, http.StatusOK)
	}
	refusals := make(chan string, beyond)
	for range beyond {
		r := b.sendPart(t, secrets["ci"], strings.Repeat("x", console.MaxForm-1))
		go func() { // ends with the connection
			if resp, err := http.ReadResponse(r, nil); err == nil {
				body, _ := io.ReadAll(resp.Body) // fails if the test has ended
				_ = resp.Body.Close()
				refusals <- fmt.Sprint(resp.StatusCode, " ", string(body))
			}
		}()
	}
	got := waittest.Receive(t, "the answer to a form beyond the share", refusals)
	for _, want := range []string{"503 ", "token ci take 16 MiB, which is the limit"} {
		if !strings.Contains(got, want) {
			t.Errorf("a form beyond the share: got %s, want %s in it", got, want)
		}
	}
	post("other", "none").want(t, http.StatusOK)
}

// sendPart sends a form of console.MaxForm bytes up to a part of it. It returns once the node reads the form.
func (b *browser) sendPart(t *testing.T, secret, part string) *bufio.Reader {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the server may have closed it
	if secret != "" {
		secret = "Authorization: Bearer " + secret + "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "POST /timers/cancel HTTP/1.1\r\nHost: localhost\r\n%sContent-Type: application/x-www-form-urlencoded\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", secret, console.MaxForm); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	// The server asks for the body when the node begins to read it.
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusContinue {
		t.Fatalf("got %+v and error %v, want 100 Continue", resp, err)
	}
	_ = resp.Body.Close()         // it has none
	_, _ = fmt.Fprint(conn, part) // the node may refuse the form before its end
	return r
}
