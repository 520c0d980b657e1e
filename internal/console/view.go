package console

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/schemas"
)

//go:embed templates static
var files embed.FS

// view is the answer to a request.
type view struct {
	status int // 0 for 200
	// name is the template, and title the title of the page. A fragment is a part of a page.
	name, title string
	fragment    bool
	data        any
	// location redirects to a path, with a notice by its key in notices.
	location, notice string
}

// notices are the sentences that a page shows after a change, by the parameter done.
var notices = map[string]string{
	"added": "The timer is stored.", "duplicate": "This timer was stored before; nothing has changed.",
	"cancelled": "The timer is cancelled.", "moved": "The timer has another due time.", "fired": "The timer is due now.",
	"paused": "It is paused.", "resumed": "It is resumed.", "replayed": "The dead letter is replayed.",
	"triggered": "A run was asked for.", "backfilled": "The runs were asked for.", "updated": "The schedule is changed.",
	"limited": "The limit is stored.", "unlimited": "The limit is deleted.", "stopped": "The calls are paused.", "released": "The calls go on.", "reset": "The calls may begin again.",
	"dated": "The calendar is stored.", "undated": "The calendar is deleted.",
	"moved-clock": "The clock has moved.", "moving-clock": "The clock has not reached its target yet: some callbacks have no result.",
	"endless-clock": "The clock has passed 1,000 due times, and timers are still ahead.",
}

// frame is the data of the layout that all pages have.
type frame struct {
	Page, Title string
	Nav         []navItem
	// User is the name of the token; "" for none. Session is true if the browser has logged in.
	User, Tenant string
	Session      bool
	Can          rights
	Notice       string
	// Clock is the clock of a development node; nil on other nodes.
	Clock *schemas.ClockReply
	Data  any
}

type navItem struct {
	Path, Text string
	Here       bool
}

// templates are the pages by name.
var templates = parse()

func parse() map[string]*template.Template {
	funcs := template.FuncMap{
		"rfc": func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }, "plain": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") },
		"zoned": zoned, "ms": formatMs, "asset": asset, "url": pathOf, "query": query,
	}
	layout := template.Must(template.New("layout").Funcs(funcs).ParseFS(files, "templates/layout.html", "templates/clockbar.html"))
	all := map[string]*template.Template{}
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		panic(err)
	}
	for _, file := range names {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name != "layout" && name != "clockbar" {
			all[name] = template.Must(template.Must(layout.Clone()).ParseFS(files, file))
		}
	}
	return all
}

// answer sends a view.
func (c *Console) answer(q *request, w http.ResponseWriter, v *view) {
	if v.location != "" {
		to := v.location
		if v.notice != "" {
			sign := "?"
			if strings.Contains(to, "?") {
				sign = "&"
			}
			to += sign + "done=" + v.notice
		}
		http.Redirect(w, q.Request, to, http.StatusSeeOther)
		return
	}
	if v.name == "" {
		w.WriteHeader(http.StatusNoContent) // nothing has changed
		return
	}
	f := frame{Page: v.name, Title: v.title, User: q.id.Name, Tenant: q.id.Tenant, Session: sessionName(q.Request) != "" && q.ops != nil, Can: q.can, Notice: notices[q.URL.Query().Get("done")], Data: v.data}
	if !v.fragment {
		f.Clock = q.showClock()
	}
	for _, n := range navigation {
		if (f.Can.Write || n.scope == token.ScopeRead) && (f.Tenant == "" || !n.shared) {
			f.Nav = append(f.Nav, navItem{n.Path, n.Text, q.URL.Path == n.Path})
		}
	}
	if q.ops == nil {
		f.Nav = nil
	}
	var page bytes.Buffer
	block := "layout"
	if v.fragment {
		block = "fragment"
	}
	if err := templates[v.name].ExecuteTemplate(&page, block, f); err != nil {
		c.o.Log.Error().Err(err).Str("page", v.name).Msg("a page of the console could not be made")
		http.Error(w, "this page could not be made; the log of the node has the reason", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(v.status, http.StatusOK))
	if _, err := w.Write(page.Bytes()); err != nil {
		c.o.Log.Debug().Err(err).Msg("a client of the console closed its connection before its page was sent")
	}
}

// versions are the first digits of the checksums of the static files, by name: a changed file has
// another address, so browsers may cache each without a limit.
var versions = func() map[string]string {
	all := map[string]string{}
	entries, err := files.ReadDir("static")
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		data, err := files.ReadFile("static/" + e.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(data)
		all[e.Name()] = hex.EncodeToString(sum[:6])
	}
	return all
}()

// asset returns the address of a static file.
func asset(name string) string { return "/static/" + name + "?v=" + versions[name] }

// serveStatic serves the scripts and styles. It needs no login.
func serveStatic(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	if versions[name] == "" || path.Ext(name) == ".txt" {
		http.NotFound(w, r)
		return
	}
	if r.URL.Query().Get("v") == versions[name] {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, files, "static/"+name)
}

// zoned returns a time in a zone by name, with the name.
func zoned(t time.Time, zone string) string {
	loc, err := calendar.ProcessZones().Location(cmp.Or(zone, "UTC"))
	if err != nil {
		return "" // the zone data of this program does not have the zone
	}
	return t.In(loc).Format("2006-01-02 15:04:05 MST") + " (" + loc.String() + ")"
}

// formatMs returns a number of milliseconds as a duration.
func formatMs(n any) string {
	switch n := n.(type) {
	case int64:
		return schemas.FormatDuration(time.Duration(n) * time.Millisecond)
	case uint32:
		return schemas.FormatDuration(time.Duration(n) * time.Millisecond)
	}
	return fmt.Sprint(n)
}

// pathOf returns the path of a timer or run.
func pathOf(timer fmt.Stringer) string { return "/timers/" + timer.String() }

// shellQuote returns a text as one word of a POSIX shell.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+=,") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// revision returns the revision that a form names; 0 for any.
func (q *request) revision() (uint64, error) {
	text := q.Form.Get("revision")
	if text == "" || q.Method == http.MethodGet {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, schemas.Errorf(schemas.CodeBadRequest, "revision %.40q is no number", text)
	}
	return n, nil
}
