package jet

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
)

// The tests in this file show the symptoms of the defects of nats-server that
// docs/internals/nats-server.md lists. A test fails once the server that go.mod names no
// longer has the defect.

// fixed reports that the server has lost a defect.
func fixed(t *testing.T, number int, format string, args ...any) {
	t.Helper()
	t.Errorf("nats-server %s no longer shows this: delete work-around %d (docs/internals/nats-server.md): %s", server.VERSION, number, fmt.Sprintf(format, args...))
}

// eventually polls: the server gives no notice.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// streamFiles is the folder of a stream's messages.
func streamFiles(dir, stream string) string {
	return filepath.Join(dir, "jetstream", "$G", "streams", stream, "msgs")
}

// quirk1: a revision that the history limit drops comes back.
func TestQuirk1DroppedRevisionReturns(t *testing.T) {
	t.Parallel()
	p := natstest.RunProcess(t, true)
	c := newClient(t, p.Connect(), 10*time.Second)
	if err := c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s.*"}, Storage: FileStorage, MaxMsgsPerSubject: 1, AllowMsgTTL: true}); err != nil {
		t.Fatal(err)
	}
	// Another subject keeps the file: the server removes one without messages.
	for _, w := range []struct {
		subject, value string
		header         Header
	}{{"s.other", "x", nil}, {"s.key", "older", nil}, {"s.key", "newer", TTLHeader(time.Second)}} {
		if _, err := c.Publish(t.Context(), "publish", w.subject, w.header, []byte(w.value)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the newer revision to expire", func() bool {
		_, err := c.Last(t.Context(), "S", "s.key")
		return errors.Is(err, ErrNotFound)
	})
	p.Kill()
	p.Start()
	eventually(t, "the stream", func() bool {
		_, err := c.Stream(t.Context(), "S")
		return err == nil
	})
	if m, err := c.Last(t.Context(), "S", "s.key"); err != nil || string(m.Data) != "older" {
		fixed(t, 1, "%+v, %v", m, err)
	}
}

// damaged returns a client of a server with a stream of which the message s.1 of 5 is
// damaged on disk, with an intact index or with an index that the server rebuilds.
func damaged(t *testing.T, rebuilt bool) *Client {
	t.Helper()
	s := natstest.Run(t)
	nc := s.Connect()
	c := newClient(t, nc, 10*time.Second)
	if err := c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s.*"}, Storage: FileStorage, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := c.Publish(t.Context(), "publish", fmt.Sprintf("s.%d", i), nil, []byte(strings.Repeat(fmt.Sprintf("value %d ", i), 20))); err != nil {
			t.Fatal(err)
		}
	}
	s.Stop()
	dir := streamFiles(s.StoreDir(), "S")
	path := filepath.Join(dir, "1.blk")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := strings.Index(string(b), "value 1 ")
	if at < 0 {
		t.Fatalf("%s does not have the message", path)
	}
	b[at] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if rebuilt {
		if err := os.Remove(filepath.Join(dir, "index.db")); err != nil {
			t.Fatal(err)
		}
	}
	s.Start()
	eventually(t, "the connection", nc.IsConnected)
	eventually(t, "the stream", func() bool {
		_, err := c.Stream(t.Context(), "S")
		return err == nil
	})
	return c
}

// quirk2: a multi-get fails as a whole because of one message that cannot be read.
func TestQuirk2MultiGetFailsAsAWhole(t *testing.T) {
	t.Parallel()
	c := damaged(t, false)
	a, err := c.Direct(t.Context(), "S", Get{MultiLast: []string{"s.0", "s.1", "s.2"}})
	if err != nil || a.Found {
		fixed(t, 2, "%d messages, %v", len(a.Msgs), err)
	}
	if a, err = c.Direct(t.Context(), "S", Get{MultiLast: []string{"s.0", "s.2"}}); err != nil || len(a.Msgs) != 2 {
		t.Errorf("without the damaged message: %d messages, %v", len(a.Msgs), err)
	}
}

// quirk3: the server drops messages of a damaged file and does not say so.
func TestQuirk3LossIsNotReported(t *testing.T) {
	t.Parallel()
	c := damaged(t, true)
	resp, err := c.nc.Request("$JS.API.STREAM.INFO.S", nil, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	info, err := c.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", resp.Data)
	if info.State.Msgs == 5 || strings.Contains(string(resp.Data), `"lost":`) {
		fixed(t, 3, "%s", resp.Data)
	}
}

// quirk4: a purge that empties a work queue replaces its file.
func TestQuirk4PurgeReplacesFile(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	c := newClient(t, s.Connect(), 10*time.Second)
	if err := c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: FileStorage, Retention: WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	files := func() string {
		list, err := filepath.Glob(filepath.Join(streamFiles(s.StoreDir(), "S"), "*.blk"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(list, " ")
	}
	for range 3 {
		if _, err := c.Publish(t.Context(), "publish", "s", nil, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	before := files()
	if err := c.RemoveBelow(t.Context(), "purge", "S", "", 3); err != nil {
		t.Fatal(err)
	}
	if after := files(); after != before {
		t.Errorf("a purge of two of three messages replaces %s by %s", before, after)
	}
	if err := c.RemoveBelow(t.Context(), "purge", "S", "", 4); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(t.Context(), "publish", "s", nil, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if after := files(); after == before {
		fixed(t, 4, "the stream still has the file %s", after)
	}
}

// quirk5: error codes say too little, so that errors.go reads texts.
func TestQuirk5ErrorTexts(t *testing.T) {
	t.Parallel()
	const large = 34 << 20 // over the file store's limit of a message
	s := natstest.Run(t, func(o *server.Options) { o.MaxPayload, o.MaxPending = 2*large, 4*large })
	nc := s.Connect()
	js := natstest.JetStream(t, nc)
	stream, err := js.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: FileStorage, MaxMsgs: 1, Discard: DiscardNew})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(n int) *jetstream.APIError {
		t.Helper()
		var api *jetstream.APIError
		_, err := js.Publish(t.Context(), "s", make([]byte, n))
		if err != nil && !errors.As(err, &api) {
			t.Fatal(err)
		}
		return api
	}
	if err := publish(large); err == nil || err.ErrorCode != codeStoreFailed || !strings.Contains(err.Description, messageTooLarge) {
		fixed(t, 5, "a message that is too large: %v", err)
	}
	if err := publish(1); err != nil {
		t.Fatal(err)
	}
	if err := publish(1); err == nil || err.ErrorCode != codeStoreFailed {
		fixed(t, 5, "a full stream: %v", err)
	}
	if err := stream.DeleteMsg(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	m, err := nc.Request("$JS.API.STREAM.MSG.DELETE.S", []byte(`{"seq":1}`), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(m.Data), fmt.Sprint(`"err_code":`, codeDeleteFailed)) {
		fixed(t, 5, "the deletion of no message: %s", m.Data)
	}
}

// quirk6: a request that finds no leader is never answered. The test asks every millisecond
// while a leader stops, until the next one has answered.
func TestQuirk6NoLeaderNoAnswer(t *testing.T) {
	t.Parallel()
	cl := natstest.Cluster3(t)
	c := newClient(t, cl.Connect(), 10*time.Second)
	eventually(t, "the stream", func() bool {
		return c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: FileStorage, Replicas: 3}) == nil
	})
	eventually(t, "a message", func() bool { _, err := c.Publish(t.Context(), "publish", "s", nil, nil); return err == nil })
	asked := 0
	for range 5 {
		leader := cl.WaitStreamLeader("S")
		other := cl.Servers[0]
		if other == leader {
			other = cl.Servers[1]
		}
		nc := other.Connect()
		inbox := nc.NewInbox()
		answers, err := nc.SubscribeSync(inbox + ".*")
		if err != nil {
			t.Fatal(err)
		}
		ask := func() {
			t.Helper()
			asked++
			if err := nc.PublishRequest("$JS.API.STREAM.MSG.GET.S", fmt.Sprint(inbox, ".", asked), []byte(`{"seq":1}`)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		first := asked
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			leader.Stop()
		}()
		for running := true; running; ask() {
			select {
			case <-stopped:
				running = false
			default:
			}
		}
		eventually(t, "a leader", func() bool {
			ask()
			return cl.StreamLeader("S") != nil
		})
		answered := 0
		for {
			_, err := answers.NextMsg(2 * time.Second)
			if errors.Is(err, nats.ErrTimeout) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			answered++
		}
		t.Logf("%d of %d requests were answered", answered, asked-first)
		if answered < asked-first {
			return
		}
		leader.Start()
		cl.WaitReady()
	}
	fixed(t, 6, "%d requests were answered while the leader changed five times", asked)
}

// alone stops the other servers of a cluster and calls ask with a connection to the server that
// is left, which leads as leads says and has not noticed yet that it has no majority. If ask
// returns false, it has noticed: alone tries again.
func alone(t *testing.T, leads func(*natstest.Cluster, *natstest.Server) bool, ask func(nc *nats.Conn) bool) {
	t.Helper()
	cl := natstest.Cluster3(t)
	c := newClient(t, cl.Connect(), 10*time.Second)
	eventually(t, "the stream", func() bool {
		return c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: FileStorage, Replicas: 3}) == nil
	})
	for range 5 {
		var leader *natstest.Server
		eventually(t, "a leader", func() bool {
			for _, s := range cl.Servers {
				if leads(cl, s) {
					leader = s
				}
			}
			return leader != nil
		})
		nc := leader.Connect()
		for _, s := range cl.Servers {
			if s != leader {
				s.Stop()
			}
		}
		if ask(nc) {
			return
		}
		for _, s := range cl.Servers {
			if s != leader {
				s.Start()
			}
		}
		cl.WaitReady()
	}
	t.Error("five times the leader gave up before it was asked")
}

// answer requests and decodes the error of the answer.
func answer(t *testing.T, nc *nats.Conn, m *nats.Msg) (code jetstream.ErrorCode, text string) {
	t.Helper()
	resp, err := nc.RequestMsg(m, 2*time.Second)
	if err != nil {
		return 0, err.Error()
	}
	var r struct {
		Error jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(resp.Data, &r); err != nil {
		t.Fatal(err)
	}
	return r.Error.ErrorCode, string(resp.Data)
}

// quirk7: while a write is being replicated, the leader answers a second one as if the
// first had succeeded, under another error code.
func TestQuirk7UndecidedWrite(t *testing.T) {
	t.Parallel()
	alone(t, func(cl *natstest.Cluster, s *natstest.Server) bool { return cl.StreamLeader("S") == s }, func(nc *nats.Conn) bool {
		write := func() *nats.Msg { return &nats.Msg{Subject: "s", Header: casHeader(0, 0)} }
		first := write()
		first.Reply = nc.NewInbox()
		if err := nc.PublishMsg(first); err != nil {
			t.Fatal(err)
		}
		code, text := answer(t, nc, write())
		if code == 0 {
			t.Log(text)
			return false
		}
		if code != codeWrongLastSeqReplica {
			fixed(t, 7, "%s", text)
		}
		return true
	})
}

// quirk8: while the deletion of a stream is being replicated, a second request is answered as
// if the first had succeeded.
func TestQuirk8UndecidedDelete(t *testing.T) {
	t.Parallel()
	alone(t, func(_ *natstest.Cluster, s *natstest.Server) bool { return s.Running() && s.JetStreamIsLeader() }, func(nc *nats.Conn) bool {
		const subject = "$JS.API.STREAM.DELETE.S"
		if err := nc.PublishRequest(subject, nc.NewInbox(), nil); err != nil {
			t.Fatal(err)
		}
		code, text := answer(t, nc, &nats.Msg{Subject: subject})
		if code == 0 {
			t.Log(text)
			return false
		}
		if code != codeStreamNotFound {
			fixed(t, 8, "%s", text)
		}
		return true
	})
}

// quirk12: a stream without a limit of consumers has the server's.
func TestQuirk12ConsumerLimit(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	js := natstest.JetStream(t, nc)
	if _, err := js.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	for i := range server.JSDefaultMaxConsumersPerStream + 1 {
		_, err := js.CreateConsumer(t.Context(), "S", jetstream.ConsumerConfig{Name: fmt.Sprint("c", i), MemoryStorage: true, InactiveThreshold: time.Hour})
		if last := i == server.JSDefaultMaxConsumersPerStream; !last && err != nil {
			t.Fatal(err)
		} else if last && err == nil {
			fixed(t, 12, "%d consumers", i+1)
		}
	}
}

// quirk22: a purge up to a deleted message, which leaves the stream empty, makes the next purge subtract its messages
// again.
func TestQuirk22PurgeToDeleted(t *testing.T) {
	t.Parallel()
	c := newClient(t, natstest.Run(t).Connect(), 10*time.Second)
	if err := c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s"}, Storage: FileStorage, Retention: WorkQueuePolicy}); err != nil {
		t.Fatal(err)
	}
	publish := func(n int) {
		t.Helper()
		for range n {
			if _, err := c.Publish(t.Context(), "publish", "s", nil, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(10)
	if err := c.DeleteMsg(t.Context(), "delete", "S", 10); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveBelow(t.Context(), "purge", "S", "", 10); err != nil {
		t.Fatal(err)
	}
	publish(20)
	if err := c.RemoveBelow(t.Context(), "purge", "S", "", 16); err != nil {
		t.Fatal(err)
	}
	info, err := c.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs == 15 {
		fixed(t, 22, "the stream has the %d messages from %d to %d", info.State.Msgs, info.State.FirstSeq, info.State.LastSeq)
	} else if info.State.Msgs != 6 {
		t.Errorf("the stream has %d messages from %d to %d", info.State.Msgs, info.State.FirstSeq, info.State.LastSeq)
	}
}

// quirk23: messages that were removed from the start of a block come back.
func TestQuirk23RemovedMessagesReturn(t *testing.T) {
	t.Parallel()
	p := natstest.RunProcess(t, true)
	nc := p.Connect()
	c := newClient(t, nc, 10*time.Second)
	cfg := StreamConfig{Name: "S", Subjects: []string{"s.*"}, Storage: FileStorage, MaxMsgsPerSubject: 16, AllowRollup: true, AllowAtomicPublish: true}
	if err := c.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	// A block has 41 large messages. Each message removes an older one of its subject.
	write := func(first, last, size int) {
		t.Helper()
		for i := first; i <= last; i++ {
			if _, err := c.Publish(t.Context(), "publish", fmt.Sprint("s.", i), Header{headerRollup: {rollupSubject}}, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const large, small = 100_000, 100
	write(1, 205, large)   // blocks 1 to 5
	write(70, 95, large)   // Block 6 gets the marks of the removals. Half of them are from the start of block 3.
	write(206, 230, large) // block 7 begins
	write(70, 95, small)   // Block 6 loses more than half of its bytes.
	for i, last := range []string{"", "1"} {
		m := &nats.Msg{Subject: "s.batch", Header: nats.Header{batchIDHeader: {"b"}, batchSeqHeader: {fmt.Sprint(i + 1)}}}
		if last != "" {
			m.Header[batchCommitHeader] = []string{last} // The server compacts blocks when it commits a batch.
		}
		if _, err := nc.RequestMsg(m, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	returned := func() (seqs []uint64) {
		t.Helper()
		for seq := uint64(70); seq <= 95; seq++ {
			if _, err := c.At(t.Context(), "S", seq); err == nil {
				seqs = append(seqs, seq)
			} else if !errors.Is(err, ErrNotFound) {
				t.Fatal(err)
			}
		}
		return seqs
	}
	if seqs := returned(); len(seqs) > 0 {
		t.Fatalf("the messages %d were not removed", seqs)
	}
	p.Kill()
	p.Start()
	c = newClient(t, p.Connect(), 10*time.Second)
	eventually(t, "the stream", func() bool {
		_, err := c.Stream(t.Context(), "S")
		return err == nil
	})
	if seqs := returned(); len(seqs) == 0 {
		fixed(t, 23, "no message returned")
	}
}

// TestQuirkTable checks that docs/internals/nats-server.md and the code agree: each test
// and each file of the table exists, and each file names the number.
func TestQuirkTable(t *testing.T) {
	t.Parallel()
	const root = "../../"
	doc, err := os.ReadFile(root + "docs/internals/nats-server.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| (\d+) \|.*$`).FindAllStringSubmatch(string(doc), -1)
	if len(rows) < 7 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	for i, row := range rows {
		if row[1] != fmt.Sprint(i+1) {
			t.Errorf("row %d has the number %s", i+1, row[1])
		}
		for _, path := range regexp.MustCompile("`([a-z_/0-9]+\\.go)`").FindAllStringSubmatch(row[0], -1) {
			src, err := os.ReadFile(root + path[1])
			if err != nil {
				t.Error(err)
			} else if !regexp.MustCompile(`[Ww]ork-arounds? (\d+(, | and ))*` + row[1] + `\b`).Match(src) {
				t.Errorf("%s does not name work-around %s", path[1], row[1])
			}
		}
	}
	tests := regexp.MustCompile("`(Test\\w+)` \\(`([a-z/]+)`\\)").FindAllStringSubmatch(string(doc), -1)
	if len(tests) < len(rows)/2 {
		t.Fatalf("the table names %d tests", len(tests))
	}
	for _, test := range tests {
		files, err := filepath.Glob(root + test[2] + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, path := range files {
			src, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(src), "func "+test[1]+"(")
		}
		if !found {
			t.Errorf("%s has no %s", test[2], test[1])
		}
	}
}
