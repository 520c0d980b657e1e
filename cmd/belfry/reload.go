package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry/internal/app"
)

// reloadPoll is how often the files of the configuration are looked at. A change is
// taken up when two looks in a row see the same, so that a file that is being
// written is not read in part: after at most three of these.
//
// They are polled, and not watched: a mounted secret is replaced by renaming a
// symbolic link two folders above it, which a watch of the file does not see.
const reloadPoll = time.Second

// reloadable are the settings that take effect without a restart, besides services.
var reloadable = []string{"callback-subjects", "callback-hosts"}

// reloader loads the configuration again, on SIGHUP and when one of its files has
// changed. A configuration with a mistake is reported, and the one before stays.
type reloader struct {
	c   *cli
	s   *settings // those in use
	a   *app.App
	log zerolog.Logger
	// files are those of the configuration in use, and of the last one that failed:
	// the mistake may be in a file that it names for the first time.
	files fileStamps
}

// run reloads until ctx ends.
func (r *reloader) run(ctx context.Context) {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	tick := time.NewTicker(reloadPoll)
	defer tick.Stop()
	r.files = maps.Clone(r.s.files)
	before := r.files
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
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
		err = r.a.Reconfigure(o.Callbacks)
	}
	if err != nil {
		// The stamps of what was read are older than those of what was not.
		maps.Copy(before, next.files)
		r.files = before
		r.log.Error().Err(err).Str("config", r.s.config).Msg("the configuration was not reloaded; the one before stays in use")
		return
	}
	r.files = next.files
	if fixed := fixedChanges(r.s, next); len(fixed) > 0 {
		r.log.Warn().Strs("settings", fixed).Msg("these settings have changed and take effect at the next start")
	}
	r.log.Info().Str("config", r.s.config).Int("services", len(o.Callbacks.Services)).Msg("the configuration was reloaded")
}

// again loads the settings anew, with the same flags.
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

// fixedChanges are the settings that differ and that only a start reads.
func fixedChanges(old, next *settings) []string {
	a, b := old.effective(), next.effective()
	var out []string
	for _, name := range old.names {
		if !slices.Contains(reloadable, name) && !reflect.DeepEqual(a[name], b[name]) {
			out = append(out, name)
		}
	}
	return out
}

// fileStamps tells whether files have changed since they were read: by path, what a
// write or a replacement changes.
type fileStamps map[string]string

// note stamps a file. It is called before the file is read, so that a change while
// it is read is one that is seen.
func (f fileStamps) note(path string) {
	st, err := os.Stat(path) // follows symbolic links
	if err != nil {
		f[path] = "missing"
		return
	}
	f[path] = fmt.Sprint(st.Size(), st.ModTime().UnixNano(), st.Mode())
}

// again stamps the same files now.
func (f fileStamps) again() fileStamps {
	now := make(fileStamps, len(f))
	for path := range f {
		now.note(path)
	}
	return now
}
