package app

import (
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestSharedAccountIsLogged: a node on a server without accounts warns. A node with its
// own account, or with an embedded server, does not.
func TestSharedAccountIsLogged(t *testing.T) {
	t.Parallel()
	production := natstest.RunProduction(t, "../../nats.conf", nil)
	plain := natstest.Run(t)
	for name, tt := range map[string]struct {
		change func(*Options)
		warns  bool
	}{
		"no accounts": {func(o *Options) { o.Data, o.NATSURL = "", plain.URL() }, true},
		"nats.conf":   {func(o *Options) { o.Data, o.NATSURL, o.TLS.CA = "", production.URLOf("belfry"), production.CA }, false},
		"embedded":    {func(*Options) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logtest.Buffer
			o := options(t)
			o.Log = zerolog.New(&log).Level(zerolog.WarnLevel)
			tt.change(&o)
			stop(t, start(t, o))
			if got := strings.Contains(log.String(), "shares its NATS account"); got != tt.warns {
				t.Errorf("got a warning about a shared account: %v, want %v; log %s", got, tt.warns, log.String())
			}
			if tt.warns && !strings.Contains(log.String(), "Security model") {
				t.Errorf("got log %s, want a reference to the section \"Security model\"", log.String())
			}
		})
	}
}

// TestSharedNodeName: a process that sees another one with its node name logs it.
func TestSharedNodeName(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	o := options(t)
	o.Data, o.NATSURL, o.Node, o.Roles = "", s.URL(), "same", []Role{RoleRouter}
	var log logtest.Buffer
	o.Log = zerolog.New(&log)
	start(t, o)
	o.Log = zerolog.Nop()
	start(t, o)
	waittest.Until(t, "the line", func() bool { return strings.Contains(log.String(), "another process uses the name of this node") })
	if n := strings.Count(log.String(), "another process uses the name of this node"); n != 1 {
		t.Errorf("%d lines", n)
	}
}
