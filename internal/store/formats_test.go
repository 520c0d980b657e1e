package store_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// formatOf returns the format of a timer's stored record.
func formatOf(t *testing.T, s *store.Store, id schemas.TimerID) schemas.RecordFormat {
	t.Helper()
	kv := bucket(t, s, schemas.BucketTimers(s.Geometry().Shard(id)))
	e, err := kv.Get(t.Context(), "timer."+id.String())
	if err != nil {
		t.Fatal(err)
	}
	return schemas.RecordFormat(e.Value()[0])
}

func bucket(t *testing.T, s *store.Store, name string) jetstream.KeyValue {
	t.Helper()
	kv, err := s.JetStream().KeyValue(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// layout returns the recorded layout version, and the version from which it was raised.
func layout(t *testing.T, s *store.Store) (format, from int) {
	t.Helper()
	e, err := bucket(t, s, schemas.BucketClock).Get(t.Context(), "meta")
	if err != nil {
		t.Fatal(err)
	}
	var m struct{ Format, From int }
	if err := json.Unmarshal(e.Value(), &m); err != nil {
		t.Fatal(err)
	}
	return m.Format, m.From
}

// setLayout changes the recorded layout version, as if another build had made the store.
func setLayout(t *testing.T, kv jetstream.KeyValue, format int) {
	t.Helper()
	e, err := kv.Get(t.Context(), "meta")
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(e.Value(), &m); err != nil {
		t.Fatal(err)
	}
	m["format"] = format
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "meta", b); err != nil {
		t.Fatal(err)
	}
}

func writesFormat2(s *store.Store) func() bool {
	return func() bool { return s.RecordFormat() == schemas.RecordFormat2 }
}

// TestLevelAtOpen: when Open returns, the node knows the level of the live nodes. It refuses nothing
// that they all read, and writes nothing that one of them does not read.
func TestLevelAtOpen(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	for _, name := range []string{"n1", "n2"} {
		s := open(t, nc, func(c *store.Config) { c.Node = name })
		if got := s.Writes(); got != store.NewestLevel {
			t.Errorf("%s writes level %d, want %d", name, got, store.NewestLevel)
		}
		if err := s.CanSchedule(); err != nil {
			t.Errorf("%s refuses a schedule: %v", name, err)
		}
	}
	open(t, nc, func(c *store.Config) { c.Node, c.Level = "older", store.LevelSealedCallback })
	s := open(t, nc, func(c *store.Config) { c.Node = "n3" })
	if got := s.Writes(); got != store.LevelSealedCallback {
		t.Errorf("an older node lives: n3 writes level %d, want %d", got, store.LevelSealedCallback)
	}
	if err := s.CanSchedule(); err == nil || !strings.Contains(err.Error(), "node older ") {
		t.Errorf("%v; want an error that names the older node", err)
	}
}

// TestFormat2OfAFreshStore: a node of a new store writes format 2 as soon as it has read the
// presences, and keeps the fields that only this format has.
func TestFormat2OfAFreshStore(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess())
	waittest.Until(t, "format 2", writesFormat2(s))
	if format, from := layout(t, s); format != 3 || from != 0 {
		t.Errorf("layout %d from %d", format, from)
	}
	id := storetest.ID(1)
	rec := storetest.Pending(storetest.NowMs(t, s) + 60_000)
	rev := storetest.CreateAll(t, s, []store.Write{{ID: id, Record: rec}})[0]
	if got := formatOf(t, s, id); got != schemas.RecordFormat2 {
		t.Errorf("written in format %d", got)
	}
	rec.Note(schemas.Operation{Kind: schemas.OperationReschedule, AtMs: 5, Caller: schemas.Caller{By: "ann"}})
	rec.Ext = []schemas.Extension{{Type: 1000, Value: []byte("x")}}
	if _, err := s.Update(t.Context(), store.Write{ID: id, Rev: rev, Record: rec}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(t.Context(), id)
	if err != nil || !reflect.DeepEqual(got.Record.History, rec.History) || !reflect.DeepEqual(got.Record.Ext, rec.Ext) {
		t.Errorf("%+v %+v %v", got.Record.History, got.Record.Ext, err)
	}
}

// TestFormat1WhileAnOlderNodeLives: in a store that an older build has made, nodes write
// format 1 while a node of that build is alive. Then the layout version is raised, which
// keeps older builds out, and after layoutSettle nodes write format 2.
func TestFormat1WhileAnOlderNodeLives(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	made := open(t, nc)
	nodes := bucket(t, made, schemas.BucketClock)
	made.Close() // first: it raises the layout
	setLayout(t, nodes, 1)
	if _, err := nodes.Put(t.Context(), "node.older", []byte(`{"v":1,"scheduler":"active","reads":1}`)); err != nil {
		t.Fatal(err)
	}
	s := open(t, nc, func(c *store.Config) { c.Node = "n2" })
	waittest.Until(t, "the node to read the presences", s.SharesIndex)
	now := storetest.NowMs(t, s)
	write := func(id schemas.TimerID) schemas.RecordFormat {
		t.Helper()
		rec := storetest.Pending(now + 60_000)
		rec.Note(schemas.Operation{Kind: schemas.OperationReschedule, AtMs: 5, Caller: schemas.Caller{By: "ann"}})
		storetest.CreateAll(t, s, []store.Write{{ID: id, Record: rec}})
		return formatOf(t, s, id)
	}
	if got := write(storetest.ID(1)); got != schemas.RecordFormat1 {
		t.Errorf("an older node lives: written in format %d", got)
	}
	if format, _ := layout(t, s); format != 1 {
		t.Errorf("an older node lives: the layout is %d", format)
	}
	if err := nodes.Delete(t.Context(), "node.older"); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the layout to be raised", func() bool { format, _ := layout(t, s); return format == 3 })
	if got := write(storetest.ID(2)); got != schemas.RecordFormat1 {
		t.Errorf("the layout was raised just now: written in format %d", got)
	}
	waittest.Until(t, "clocks to need a node that reads far entries", func() bool { return clockNeeds(t, s) == store.LevelFarIndex || s.SharesFar() })
	if s.SharesFar() {
		t.Error("far entries are written before clocks need a node that reads them")
	}
	waittest.Until(t, "format 2", writesFormat2(s))
	if got := write(storetest.ID(3)); got != schemas.RecordFormat2 {
		t.Errorf("written in format %d", got)
	}
	if _, from := layout(t, s); from != 1 {
		t.Errorf("the layout was raised from %d", from)
	}
	// An older node continues that was paused until its presence had expired.
	if _, err := nodes.Put(t.Context(), "node.older", []byte(`{"v":1,"reads":1}`)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "format 1 again", func() bool { return !writesFormat2(s)() })
	if got := write(storetest.ID(4)); got != schemas.RecordFormat1 {
		t.Errorf("an older node is back: written in format %d", got)
	}
	if got, err := s.Get(t.Context(), storetest.ID(3)); err != nil || len(got.Record.History) != 1 {
		t.Errorf("a record of format 2 cannot be read any more: %+v %v", got, err)
	}
}

// TestOpenNeedsPresences: Open fails while the node cannot write its presence, because without it
// neither this node nor the others know which formats all of them read.
func TestOpenNeedsPresences(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "p"},
			{Username: "silent", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$KV.clock.node.*"}}}},
		}
	})
	open(t, srv.Connect(nats.UserInfo("all", "p")))
	cfg := store.Config{Node: "n2", Timeout: 2 * time.Second, ReadyWithin: time.Second}
	if err := opens(t.Context(), srv.Connect(nats.UserInfo("silent", "p")), cfg); !errors.Is(err, schemas.ErrUnavailable) {
		t.Errorf("open without permission to write the presence: %v; want ErrUnavailable", err)
	}
}

// clockNeeds renews the clock of shard 0 with Needs 0, and returns what is stored.
func clockNeeds(t *testing.T, s *store.Store) store.FormatLevel {
	t.Helper()
	c, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Needs = 0
	if _, err := s.WriteClock(t.Context(), 0, c, rev); err != nil {
		t.Fatal(err)
	}
	if c, _, err = s.ReadClock(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return c.Needs
}

func TestNewerLayoutIsRefused(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	setLayout(t, bucket(t, open(t, nc), schemas.BucketClock), 4)
	s, err := store.Open(t.Context(), nc, store.Config{Node: "n2"}, zerolog.Nop())
	if !errors.Is(err, schemas.ErrNewer) {
		t.Errorf("open of a store with a newer layout: %v; want ErrNewer", err)
	}
	if err == nil {
		s.Close()
	}
}

func TestFormatsOf(t *testing.T) {
	t.Parallel()
	node := func(name string, reads store.FormatLevel) store.Member {
		return store.Member{Node: name, Presence: store.Presence{Reads: reads}}
	}
	for _, c := range []struct {
		nodes []store.Member
		want  store.Formats
	}{
		{nil, store.Formats{Record: schemas.RecordFormat1}},
		{[]store.Member{node("a", 4), node("b", 4)}, store.Formats{Level: 4, Newest: 4, Record: schemas.RecordFormat2}},
		{[]store.Member{node("c", 1), node("a", 4), node("b", 0)}, store.Formats{Level: 0, Newest: 4, HeldBackBy: []string{"b", "c"}, Record: schemas.RecordFormat1}},
	} {
		if got := store.FormatsOf(c.nodes); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, want %+v", c.nodes, got, c.want)
		}
	}
}

// TestSchedulesNeedALevel: schedules are refused while a live node does not read them, with
// the name of that node. A node of the level before reads the record of a schedule as newer,
// and no format drops a schedule.
func TestSchedulesNeedALevel(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	s := open(t, nc)
	waittest.Until(t, "schedules to be allowed", func() bool { return s.CanSchedule() == nil })
	due := storetest.NowMs(t, s) + 3_600_000
	rec := storetest.Pending(due)
	rec.Schedule = &schemas.Schedule{Recurrence: schemas.Recurrence{Every: "PT1H"}, Progress: schemas.Progress{AnchorMs: due, NextMs: due, NextDueMs: due}}
	run := storetest.Pending(due)
	run.Origin = &schemas.Origin{Schedule: storetest.ID(1), Missed: 3}
	storetest.CreateAll(t, s, []store.Write{{ID: storetest.ID(1), Record: rec}, {ID: storetest.ID(2), Record: run}})
	older := open(t, nc, func(c *store.Config) { c.Node, c.Level = "older", store.LevelSealedCallback })
	var err error
	waittest.Until(t, "schedules to be refused", func() bool { err = s.CanSchedule(); return err != nil })
	if !errors.Is(err, schemas.ErrUnavailable) || !strings.Contains(err.Error(), "node older ") {
		t.Errorf("%v; want an error that names the older node", err)
	}
	waittest.Until(t, "the older node to know itself", func() bool {
		err = older.CanSchedule()
		return older.Writes() == store.LevelSealedCallback
	})
	if !errors.Is(err, schemas.ErrUnavailable) {
		t.Errorf("the older node: %v", err)
	}
	// A node without presences writes the first level; a schedule must stay one.
	blind := open(t, nc, func(c *store.Config) { c.Node, c.Level = "blind", store.LevelSharedIndex })
	waittest.Until(t, "level 1", func() bool { return blind.Writes() == store.LevelSharedIndex && s.Writes() == store.LevelSharedIndex })
	for i, want := range []*schemas.Record{rec, run} {
		id := storetest.ID(i + 1)
		if _, err := older.Get(t.Context(), id); !errors.Is(err, schemas.ErrNewer) {
			t.Errorf("record %d on the older node: %v, want ErrNewer", i+1, err)
		}
		got, err := s.Get(t.Context(), id)
		if err != nil || !reflect.DeepEqual(got.Record.Schedule, want.Schedule) || !reflect.DeepEqual(got.Record.Origin, want.Origin) {
			t.Fatalf("record %d: %+v %v", i+1, got.Record, err)
		}
		got.Record.Moves++
		if _, err := s.Update(t.Context(), store.Write{ID: id, Rev: got.Rev, Record: &got.Record}); err != nil {
			t.Fatal(err)
		}
		got, err = s.Get(t.Context(), id)
		if err != nil || formatOf(t, s, id) != schemas.RecordFormat2 || !reflect.DeepEqual(got.Record.Schedule, want.Schedule) || !reflect.DeepEqual(got.Record.Origin, want.Origin) {
			t.Errorf("record %d, written at level 1: %+v %v", i+1, got.Record, err)
		}
	}
	nodes := bucket(t, s, schemas.BucketClock)
	for name, node := range map[string]*store.Store{"blind": blind, "older": older} {
		node.Close()
		if err := nodes.Delete(t.Context(), "node."+name); err != nil {
			t.Fatal(err)
		}
	}
	waittest.Until(t, "schedules to be allowed again", func() bool { return s.CanSchedule() == nil })
}
