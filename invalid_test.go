package belfry_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
)

// TestInvalidAdds: Add, AddAsync and AddBatch return errors with the same code for an event that
// can never be a timer. AddAsync and AddBatch publish nothing.
func TestInvalidAdds(t *testing.T) {
	t.Parallel()
	c := connect(t)
	large := newEvent("large")
	if err := large.SetData("text/plain", strings.Repeat("x", 1<<20-1000)); err != nil {
		t.Fatal(err)
	}
	with := func(id, name, value string) event.Event {
		e := newEvent(id)
		e.SetExtension(name, value)
		return e
	}
	after := belfry.After(time.Hour)
	both := with("b", "timerat", "2036-01-01T00:00:00Z")
	both.SetExtension("timerafter", "1h")
	recurs := with("b", "timercron", "* * * * *")
	recurs.SetExtension("timerafter", "1h")
	for name, x := range map[string]struct {
		event event.Event
		opts  []belfry.AddOption
		want  error
	}{
		"no due time":         {newEvent("a"), nil, belfry.ErrInvalidAttribute},
		"two due times":       {both, nil, belfry.ErrInvalidAttribute},
		"negative":            {newEvent("c"), []belfry.AddOption{belfry.After(-time.Second)}, belfry.ErrInvalidAttribute},
		"ftp callback":        {newEvent("d"), []belfry.AddOption{after, belfry.WithCallback("ftp://host/x")}, belfry.ErrInvalidAttribute},
		"Belfry's subject":    {newEvent("e"), []belfry.AddOption{after, belfry.WithCallback("nats:timers.add")}, belfry.ErrInvalidAttribute},
		"service with blank":  {newEvent("f"), []belfry.AddOption{after, belfry.WithService("a b")}, belfry.ErrInvalidAttribute},
		"too many attempts":   {newEvent("g"), []belfry.AddOption{after, belfry.WithMaxAttempts(1_000_000)}, belfry.ErrInvalidAttribute},
		"misspelt attribute":  {with("h", "timerservice", "orders"), []belfry.AddOption{after}, belfry.ErrInvalidAttribute},
		"output attribute":    {with("i", "timerrun", "1"), []belfry.AddOption{after}, belfry.ErrInvalidAttribute},
		"cron of 4 fields":    {with("j", "timercron", "* * * *"), nil, belfry.ErrInvalidAttribute},
		"never runs":          {with("j", "timercron", "0 0 30 2 *"), nil, belfry.ErrInvalidAttribute},
		"cron and a due time": {recurs, nil, belfry.ErrInvalidAttribute},
		"no such zone":        {with("k", "timertz", "Europe/Atlantis"), []belfry.AddOption{belfry.Cron("0 9 * * *")}, belfry.ErrInvalidAttribute},
		"excluded dates":      {with("l", "timerexclude", "no name"), []belfry.AddOption{belfry.Cron("0 9 * * *")}, belfry.ErrInvalidAttribute},
		"no id":               {newEvent(""), []belfry.AddOption{after}, belfry.ErrInvalidEvent},
		"over the byte limit": {large, []belfry.AddOption{after}, belfry.ErrTooLarge},
	} {
		_, add := c.Add(t.Context(), x.event, x.opts...)
		_, async := c.AddAsync(x.event, x.opts...)
		batch := c.AddBatch(t.Context(), []event.Event{x.event}, x.opts...)
		if !errors.Is(add, x.want) || !errors.Is(async, x.want) || !errors.Is(batch, x.want) {
			t.Errorf("%s: want the code of %v\nAdd:      %v\nAddAsync: %v\nAddBatch: %v", name, x.want, add, async, batch)
		}
	}
	// One invalid event: none of the batch is published.
	mixed := []event.Event{newEvent("valid"), newEvent("x")}
	mixed[0].SetExtension("timerafter", "1h")
	if err := c.AddBatch(t.Context(), mixed); !errors.Is(err, belfry.ErrInvalidAttribute) || !strings.HasPrefix(err.Error(), "add 2 of 2") {
		t.Errorf("mixed batch: %v", err)
	}
	for timer, err := range c.List(t.Context(), belfry.ListQuery{}) {
		t.Errorf("a timer exists: %+v, %v", timer, err)
	}
}

// TestAheadIsTheServers: Add returns an error for a due time beyond the server's setting
// max-ahead. AddAsync cannot know the setting.
func TestAheadIsTheServers(t *testing.T) {
	t.Parallel()
	c := connect(t)
	far := belfry.At(time.Now().Add(50 * 365 * 24 * time.Hour))
	if _, err := c.Add(t.Context(), newEvent("1"), far); !errors.Is(err, belfry.ErrInvalidAttribute) {
		t.Errorf("Add: %v", err)
	}
	p, err := c.AddAsync(newEvent("1"), far)
	if err != nil {
		t.Fatalf("AddAsync: %v", err)
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Errorf("Wait: %v", err)
	}
}

func BenchmarkValidate(b *testing.B) {
	e := newEvent("1")
	if err := e.SetData("application/json", map[string]string{"order": strings.Repeat("x", 400)}); err != nil {
		b.Fatal(err)
	}
	opts := []belfry.AddOption{belfry.After(time.Hour), belfry.WithService("orders"), belfry.WithCallback("https://shop.example/due")}
	for name, f := range map[string]func(event.Event, ...belfry.AddOption) error{"encode": belfry.Encode, "validate": belfry.Validate} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := f(e, opts...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
