package main

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

const (
	// maxApplyFile bounds a file of schedules, in bytes.
	maxApplyFile = 16 << 20
	// maxApplyErrors bounds the mistakes that apply lists.
	maxApplyErrors = 100
)

// identity is the source and the id of an event.
type identity struct{ source, id string }

// wanted is a schedule of a file.
type wanted struct {
	identity
	place string // <file>:<line>
	event event.Event
	group string
	hash  string // as ExportInfo.Hash
}

// scheduleFiles reads files of schedules. It notes every mistake and goes on.
type scheduleFiles struct {
	c *cli
	// group is the group of all schedules; "" if each may have its own.
	group  string
	wanted []wanted
	places map[identity]string
	errs   []string
}

// read reads files, and the files *.yaml and *.yml of folders; "-" is standard input. Its errors are
// those of files that cannot be read, and all mistakes in the files.
func (f *scheduleFiles) read(paths []string) error {
	f.places = map[identity]string{}
	for _, path := range paths {
		files, err := expand(path)
		if err != nil {
			return usagef("%v", err)
		}
		for _, file := range files {
			text, err := f.content(file)
			if err != nil {
				return usagef("%s: %v", file, err)
			}
			f.file(file, text)
		}
	}
	if len(f.errs) == 0 {
		return nil
	}
	shown := f.errs[:min(len(f.errs), maxApplyErrors)]
	for _, line := range shown[:len(shown)-1] {
		fmt.Fprintln(f.c.err, line) //nolint:errcheck // stderr is the last resort
	}
	if more := len(f.errs) - len(shown); more > 0 {
		return usagef("%s (and %d more mistakes; nothing was changed)", shown[len(shown)-1], more)
	}
	return usagef("%s (nothing was changed)", shown[len(shown)-1])
}

// expand returns the files that a path names.
func expand(path string) ([]string, error) {
	info, err := os.Stat(path)
	if path == "-" || err == nil && !info.IsDir() {
		return []string{path}, nil
	}
	if err != nil {
		return nil, err
	}
	var files []string
	entries, err := os.ReadDir(path) // by name
	for _, e := range entries {
		if name := e.Name(); !e.IsDir() && (strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")) {
			files = append(files, filepath.Join(path, name))
		}
	}
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("the folder %s has no file *.yaml or *.yml", path)
	}
	return files, err
}

func (f *scheduleFiles) content(file string) ([]byte, error) {
	r := f.c.in
	if file != "-" {
		in, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer in.Close() //nolint:errcheck // only read
		r = in
	}
	b, err := io.ReadAll(io.LimitReader(r, maxApplyFile+1))
	if err == nil && len(b) > maxApplyFile {
		err = fmt.Errorf("more than %d bytes, the limit", maxApplyFile)
	}
	return b, err
}

// wrong notes a mistake; line is 0 if the parser of YAML does not say where it is.
func (f *scheduleFiles) wrong(file string, line int, format string, args ...any) {
	place := file
	if line > 0 {
		place = fmt.Sprintf("%s:%d", file, line)
	}
	f.errs = append(f.errs, place+": "+printable(fmt.Sprintf(format, args...)))
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// file reads the documents of a file.
func (f *scheduleFiles) file(name string, text []byte) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	for documents := 0; ; documents++ {
		var doc yaml.Node
		err := d.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF):
			if documents == 0 { // with --prune, no schedules would cancel the whole group
				f.wrong(name, 0, "the file is empty: write \"schedules: []\" for no schedules")
			}
			return
		case err != nil:
			line, problem := 0, err.Error()
			if m := yamlLine.FindStringSubmatch(problem); m != nil {
				if n, err := strconv.Atoi(m[1]); err == nil {
					line = n
				}
				problem = m[2]
			}
			f.wrong(name, line, "%s", problem)
			return
		}
		f.document(name, doc.Content[0])
	}
}

func (f *scheduleFiles) document(file string, doc *yaml.Node) {
	if doc.Kind != yaml.MappingNode {
		f.wrong(file, doc.Line, "a file has the keys schedules and defaults")
		return
	}
	var defaults, list *yaml.Node
	f.pairs(file, doc, func(key, value *yaml.Node) {
		switch key.Value {
		case "defaults":
			defaults = value
		case "schedules":
			list = value
		default:
			f.wrong(file, key.Line, "unknown key %q: a file has the keys schedules and defaults", key.Value)
		}
	})
	switch {
	case list == nil:
		f.wrong(file, doc.Line, "the key schedules is missing")
		return
	case list.Kind != yaml.SequenceNode:
		f.wrong(file, list.Line, "schedules must be a list")
		return
	}
	if defaults != nil {
		before := len(f.errs)
		f.keys(file, newEntry(), defaults, "id")
		if len(f.errs) > before {
			return // each schedule would have the same mistakes
		}
	}
	for _, node := range list.Content {
		f.schedule(file, node, defaults)
	}
}

// pairs calls fn for the keys of a mapping, each once.
func (f *scheduleFiles) pairs(file string, node *yaml.Node, fn func(key, value *yaml.Node)) {
	if node.Kind != yaml.MappingNode {
		f.wrong(file, node.Line, "this must be a mapping: name: value")
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!merge":
			f.wrong(file, key.Line, "a key must be a word; merge keys (<<) are not supported: use defaults")
		case seen[key.Value]:
			f.wrong(file, key.Line, "the key %s occurs twice here: remove one of the two", key.Value)
		case value.Kind == yaml.AliasNode:
			f.wrong(file, value.Line, "aliases are not supported: use defaults")
		default:
			seen[key.Value] = true
			fn(key, value)
		}
	}
}

// entry collects the keys of a schedule.
type entry struct {
	flags addFlags
	data  *yaml.Node
	// lines has the line of each key, ext the other attributes.
	lines map[string]int
	ext   map[string]string
}

func newEntry() *entry {
	e := &entry{lines: map[string]int{}, ext: map[string]string{}}
	e.flags.source, e.flags.kind = defaultSource, "belfry.timer"
	return e
}

// texts returns where the text of each key goes, by the names of the flags of belfry add.
func (e *entry) texts() map[string]*string {
	a, r := &e.flags, &e.flags.recurrence
	return map[string]*string{
		"id": &a.id, "source": &a.source, "type": &a.kind, "content-type": &a.dataType, "svc": &a.service, "callback": &a.callback, "group": &a.group, "flow": &a.flow, "key": &a.key,
		"max-attempts": &a.maxAttempts, "backoff": &a.backoff, "callback-timeout": &a.callbackTime,
		"cron": &r.cron, "every": &r.every, "tz": &r.tz, "start": &r.start, "end": &r.end, "limit": &r.limit, "jitter": &r.jitter, "dst": &r.dst, "days": &r.days,
		"exclude": &r.exclude, "exclude-shift": &r.excludeShift, "misfire": &r.misfire, "grace": &r.grace, "overlap": &r.overlap, "expect": &r.expect,
	}
}

// attributeKeys are the keys of the attributes that a mistake can be about.
var attributeKeys = map[string]string{
	"id": "id", "source": "source", "type": "type", schemas.AttrService: "svc", schemas.AttrCallback: "callback", schemas.AttrGroup: "group", schemas.AttrFlow: "flow", schemas.AttrKey: "key",
	schemas.AttrMaxAttempts: "max-attempts", schemas.AttrBackoff: "backoff", schemas.AttrTimeout: "callback-timeout",
	schemas.AttrCron: "cron", schemas.AttrEvery: "every", schemas.AttrZone: "tz", schemas.AttrStart: "start", schemas.AttrEnd: "end", schemas.AttrLimit: "limit", schemas.AttrJitter: "jitter",
	schemas.AttrDST: "dst", schemas.AttrDays: "days", schemas.AttrExclude: "exclude", schemas.AttrExcludeShift: "exclude-shift", schemas.AttrMisfire: "misfire", schemas.AttrGrace: "grace",
	schemas.AttrOverlap: "overlap", schemas.AttrExpect: "expect",
}

// schedule reads one schedule.
func (f *scheduleFiles) schedule(file string, node, defaults *yaml.Node) {
	before := len(f.errs)
	e := newEntry()
	if defaults != nil {
		f.keys(file, e, defaults, "id")
	}
	clear(e.lines) // a mistake of a default is shown at the schedule
	f.keys(file, e, node, "")
	a := &e.flags
	switch {
	case len(f.errs) > before:
		return
	case a.id == "":
		f.wrong(file, node.Line, "id is missing: apply finds a stored schedule by its source and id, so write one, such as id: nightly-report")
		return
	case (a.recurrence.cron == "") == (a.recurrence.every == ""):
		f.wrong(file, node.Line, "give cron or every")
		return
	case a.worker && a.callback != "":
		f.wrong(file, node.Line, "give either worker or callback")
		return
	case f.group != "" && a.group != "" && a.group != f.group:
		f.wrong(file, cmp.Or(e.lines["group"], node.Line), "the schedule has the group %q, and apply was called with --group %q: remove the group here, or call apply without --group", a.group, f.group)
		return
	case f.group != "":
		a.group = f.group
	}
	w := wanted{identity: identity{a.source, a.id}, place: fmt.Sprintf("%s:%d", file, node.Line), group: a.group}
	if other, twice := f.places[w.identity]; twice {
		f.wrong(file, node.Line, "the schedule at %[3]s has the same id %[1]q and source %[2]q: give one of them another id", w.id, w.source, other)
		return
	}
	f.places[w.identity] = w.place
	ev, err := f.event(e)
	if err == nil {
		w.event = ev
		w.hash, err = hashOf(ev)
	}
	if err != nil {
		line := node.Line
		if wrong, ok := errors.AsType[*schemas.Error](err); ok && e.lines[attributeKeys[wrong.Attribute]] != 0 {
			line = e.lines[attributeKeys[wrong.Attribute]]
		}
		f.wrong(file, line, "%v", err)
		return
	}
	f.wanted = append(f.wanted, w)
}

// keys reads the keys of a schedule, or of the defaults, which have all but the key without.
func (f *scheduleFiles) keys(file string, e *entry, node *yaml.Node, without string) {
	texts := e.texts()
	f.pairs(file, node, func(key, value *yaml.Node) {
		name := key.Value
		text, isText := texts[name]
		e.lines[name] = key.Line
		switch {
		case name == without:
			f.wrong(file, key.Line, "defaults must not have %s, because each schedule needs one of its own", name)
		case name == "data":
			e.data = value
		case name == "worker" && value.Tag == "!!bool":
			if err := value.Decode(&e.flags.worker); err != nil {
				f.wrong(file, value.Line, "worker: %v", err)
			}
		case name == "ext" && value.Kind == yaml.MappingNode:
			f.pairs(file, value, func(key, value *yaml.Node) {
				if value.Kind != yaml.ScalarNode {
					f.wrong(file, value.Line, "%s must be text", key.Value)
					return
				}
				e.ext[key.Value] = value.Value
			})
		case name == "exclude" && value.Kind == yaml.SequenceNode:
			var names []string
			if err := value.Decode(&names); err != nil {
				f.wrong(file, value.Line, "exclude must be a list of names")
				return
			}
			*text = strings.Join(names, ",")
		case isText && value.Kind == yaml.ScalarNode && value.Tag != "!!null":
			*text = value.Value
		case isText || name == "worker" || name == "ext":
			f.wrong(file, value.Line, "%s must be %s", name, kindOf(name))
		default:
			f.wrong(file, key.Line, "unknown key %q: the keys are the flags of belfry add, without in and at", name)
		}
	})
}

// kindOf describes the values of a key other than data.
func kindOf(name string) string {
	switch name {
	case "worker":
		return "true or false"
	case "ext":
		return "a mapping of attributes to texts"
	case "exclude":
		return "the name of a calendar, or a list of names"
	}
	return "one text or number"
}

// event makes the CloudEvent of a schedule, without a time, so that it is the same every time.
func (f *scheduleFiles) event(e *entry) (event.Event, error) {
	for _, name := range slices.Sorted(maps.Keys(e.ext)) {
		e.flags.extensions = append(e.flags.extensions, name+"="+e.ext[name])
	}
	ev, err := f.c.makeEvent(&e.flags)
	if err != nil {
		return ev, err
	}
	ev.SetTime(time.Time{})
	if e.data == nil {
		return ev, nil
	}
	data := []byte(e.data.Value)
	if e.data.Kind != yaml.ScalarNode || e.data.Tag != "!!str" {
		if data, err = appendJSON(nil, e.data); err != nil {
			return ev, fmt.Errorf("data: %w", err)
		}
	}
	if len(data) == 0 {
		return ev, nil
	}
	if err := setData(&ev, data, e.flags.dataType); err != nil {
		return ev, fmt.Errorf("data: %w", err)
	}
	return ev, nil
}

// hashOf checks an event as the server does, and returns the hash that the server will have of it.
func hashOf(e event.Event) (string, error) {
	hdr, data, err := schemas.EncodeEvent(e, schemas.ModeStructured)
	if err != nil {
		return "", err
	}
	_, spec, err := recurrence.ParseAdd(hdr, data, time.Now().UnixMilli(), schemas.Limits{MaxHorizon: noMaxAhead}, recurrence.UnknownCalendars)
	return hex.EncodeToString(spec.Hash[:]), err
}

// appendJSON appends a value as JSON, with the keys in the order of the file.
func appendJSON(b []byte, node *yaml.Node) ([]byte, error) {
	var err error
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Kind != yaml.ScalarNode {
				return b, fmt.Errorf("line %d: a key must be a word", node.Content[i].Line)
			}
			b = append(appendText(append(b, "{,"[min(i, 1)]), node.Content[i].Value), ':')
			if b, err = appendJSON(b, node.Content[i+1]); err != nil {
				return b, err
			}
		}
		if len(node.Content) == 0 {
			b = append(b, '{')
		}
		return append(b, '}'), nil
	case yaml.SequenceNode:
		b = append(b, '[')
		for i, item := range node.Content {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendJSON(b, item); err != nil {
				return b, err
			}
		}
		return append(b, ']'), nil
	case yaml.AliasNode:
		return b, fmt.Errorf("line %d: aliases are not supported", node.Line)
	}
	switch node.Tag {
	case "!!null", "!!bool", "!!int", "!!float":
		if json.Valid([]byte(node.Value)) { // 1, 1.50 and true are the same in JSON
			return append(b, node.Value...), nil
		}
		var v any
		if err := node.Decode(&v); err != nil {
			return b, fmt.Errorf("line %d: %w", node.Line, err)
		}
		text, err := json.Marshal(v)
		if err != nil {
			return b, fmt.Errorf("line %d: JSON has no number %s: write it as a text, in quotes", node.Line, node.Value)
		}
		return append(b, text...), nil
	}
	return appendText(b, node.Value), nil
}

// appendText appends a JSON string.
func appendText(b []byte, s string) []byte {
	var w bytes.Buffer
	e := json.NewEncoder(&w)
	e.SetEscapeHTML(false)
	e.Encode(s) //nolint:errcheck // a string always encodes
	return append(b, bytes.TrimRight(w.Bytes(), "\n")...)
}
