package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry/internal/app"
)

// reloadPoll is the interval between two checks of the configuration's files. The
// reloader uses a change once two checks in a row see the same file state, so that it
// does not read a half-written file: after at most three intervals.
//
// The reloader polls because Kubernetes replaces a mounted secret by renaming a symbolic
// link two folders above it, which a file watch does not report.
const reloadPoll = time.Second

// reloadable lists the settings, in addition to services, that take effect without a
// restart.
var reloadable = []string{"callback-subjects", "callback-hosts", "http-tokens", "http-token-file"}

// reloader reloads the configuration on SIGHUP and when one of its files has changed. It
// reports a configuration with a mistake and keeps the previous one.
type reloader struct {
	c   *cli
	s   *settings // the settings in use
	a   *app.App
	log zerolog.Logger
	// hangup has a value for each SIGHUP that is not handled yet, at most one.
	hangup <-chan os.Signal
	// files stamps the files of the configuration in use, and of the last configuration that
	// failed: its mistake may be in a file that only it names.
	files fileStamps
}

// run reloads until ctx ends.
func (r *reloader) run(ctx context.Context) {
	tick := time.NewTicker(reloadPoll)
	defer tick.Stop()
	r.files = maps.Clone(r.s.files)
	before := r.files
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.hangup:
			r.reload()
		case <-tick.C:
			now := r.files.again()
			settled := maps.Equal(now, before)
			before = now
			if settled && !maps.Equal(now, r.files) {
				r.reload()
			}
		}
	}
}

// reload loads the configuration and uses it.
func (r *reloader) reload() {
	before := r.files.again()
	next, o, err := r.s.again(r.c)
	if err != nil {
		r.a.NoteReload(err)
	} else {
		err = r.a.Reconfigure(o)
	}
	if err != nil {
		// Prefer stamps from before the read: they show a change during the read.
		maps.Copy(before, next.files)
		r.files = before
		r.log.Error().Err(err).Str("config", r.s.config).Msg("the configuration was not reloaded; the previous one stays in use")
		return
	}
	r.files = next.files
	if fixed := fixedChanges(r.s, next); len(fixed) > 0 {
		r.log.Warn().Strs("settings", fixed).Msg("these settings have changed and take effect at the next start")
	}
	r.log.Info().Str("config", r.s.config).Int("services", len(o.Callbacks.Services)).Int("tokens", len(o.HTTPTokens.Tokens())).Msg("the configuration was reloaded")
}

// again loads the settings with the same flags.
func (s *settings) again(c *cli) (*settings, app.Options, error) {
	next := &settings{}
	next.add(&cobra.Command{})
	next.config = s.config
	for name := range s.flagged {
		f := s.fs.Lookup(name)
		if f == nil {
			continue
		}
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		if err := next.fs.Set(name, value); err != nil {
			return next, app.Options{}, usagef("--%s: %v", name, err)
		}
	}
	o, err := next.load(c)
	return next, o, err
}

// fixedChanges returns the names of changed settings that take effect only at a start.
func fixedChanges(old, next *settings) []string {
	a, b := old.effective(), next.effective()
	var out []string
	for _, name := range old.names {
		if !slices.Contains(reloadable, name) && !reflect.DeepEqual(a[name], b[name]) {
			out = append(out, name)
		}
	}
	if !maps.Equal(old.app.Tenants, next.app.Tenants) || !maps.Equal(old.app.ExportFired, next.app.ExportFired) {
		out = append(out, keyTenants)
	}
	if !reflect.DeepEqual(old.app.Users, next.app.Users) {
		out = append(out, keyUsers)
	}
	return out
}

// fileStamps has, by path, the size, modification time and mode of files when they were
// read. A write or a replacement changes them.
type fileStamps map[string]string

// note stamps a file. Call it before you read the file, so that a change during the read
// is noticed.
func (f fileStamps) note(path string) {
	st, err := os.Stat(path) // follows symbolic links
	if err != nil {
		f[path] = "missing"
		return
	}
	f[path] = fmt.Sprint(st.Size(), st.ModTime().UnixNano(), st.Mode())
}

// again returns the current stamps of the same files.
func (f fileStamps) again() fileStamps {
	now := make(fileStamps, len(f))
	for path := range f {
		now.note(path)
	}
	return now
}
