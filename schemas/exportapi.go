package schemas

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Extension attributes of an exported event, for properties that the attributes of an add do not
// have. An import removes them. If a client publishes the event without an import, the timer is not
// paused, and its event keeps these attributes.
const (
	// AttrExportState is ExportPaused for a timer that is paused; otherwise it is absent.
	AttrExportState = "belfrystate"
	// AttrExportNote is the note of the pause; absent for none.
	AttrExportNote = "belfrynote"
	// ExportPaused is the value of AttrExportState.
	ExportPaused = "paused"
)

// ExportRequest is the body of timers.api.export. It names one timer, or selects a page of the timers
// of one tenant; empty filters select all its pending and paused timers and schedules.
type ExportRequest struct {
	TimerRef
	// States are pending, paused, retrying and delivered; the default is pending and paused. A
	// timer in another state has ended, and its event is gone.
	States  []State `json:"state,omitempty"`
	Service string  `json:"service,omitempty"`
	Group   string  `json:"group,omitempty"`
	// Schedule is as in ListRequest.
	Schedule *bool `json:"schedule,omitempty"`
	// Tenant is the tenant whose timers are exported, by default the caller's own. Only Belfry's
	// own account, which is the default tenant, may name another one.
	Tenant string `json:"tenant,omitempty"`
	Limit  int    `json:"limit,omitempty"`  // timers of the page; 0 for the default
	Cursor string `json:"cursor,omitempty"` // that of the previous page
}

// ExportReply is one page of exported timers. Cursor is empty on the last page. A page may have no
// timers and still have a cursor. A timer that changes during the export may be on two pages. A timer
// that the request selects during the whole export is on at least one page.
type ExportReply struct {
	Timers []ExportInfo `json:"timers"`
	// Skipped are timers whose events cannot be published again.
	Skipped []ExportSkip `json:"skipped,omitempty"`
	// Runs counts the runs of schedules that the filter selects. They are not exported, because
	// they have the event of their schedule.
	Runs int `json:"runs,omitempty"`
	// Unread counts records of a newer version of Belfry, which the node cannot read.
	Unread int    `json:"unread,omitempty"`
	Cursor string `json:"cursor,omitempty"`
}

// ExportInfo is an exported timer.
type ExportInfo struct {
	Timer    TimerID `json:"timer"`
	State    State   `json:"state"`
	Group    string  `json:"group,omitempty"`
	Revision uint64  `json:"revision"`
	// Hash identifies the event that was added, in hexadecimal: equal for a repeated add, different
	// for a conflicting one. See [Spec.Hash].
	Hash string `json:"hash"`
	// Due is the next nominal time of a schedule, and the due time of every other timer.
	Due time.Time `json:"due,omitzero"`
	// Lost names the properties of the timer that its event does not have, as Lost… constants.
	Lost []string `json:"lost,omitempty"`
	// Event is the event as one line of JSON in structured mode, which can be published again, with
	// an absolute due time. It is absent for a timer whose record has no event.
	Event json.RawMessage `json:"event,omitempty"`
}

// ExportSkip is a timer whose event cannot be published again.
type ExportSkip struct {
	Timer  TimerID `json:"timer"`
	ID     string  `json:"id"`
	Source string  `json:"source"`
	Code   Code    `json:"code"`
	Error  string  `json:"error"`
}

// The values of ExportInfo.Lost.
const (
	LostAttempts = "attempts" // the run has fired; its attempts begin again
	LostBackfill = "backfill" // a backfill is under way
	LostHeaders  = "headers"  // headers of the message that are no attributes
	LostHistory  = "history"  // control operations
	LostMissed   = "missed"   // nominal times that are due and not decided
	LostRuns     = "runs"     // runs have fired; they are counted from 1 again
	LostSpaces   = "spaces"   // white space of JSON data with line breaks
	LostTriggers = "triggers" // requested runs that have not fired
	LostWaiting  = "waiting"  // a run that waits for the previous one
)

// Export describes a timer for an export at nowMs, in Unix milliseconds. A one-shot timer gets its
// due time as timerat. A schedule whose period counts from its add gets that time as timerstart, and
// timerlimit is the number of runs that are left. Everything else is as the user sent it. Errors:
// those of an event that cannot be decoded.
func (r *Record) Export(id TimerID, rev uint64, nowMs int64) (ExportInfo, error) {
	info := ExportInfo{Timer: id, State: r.State, Group: r.Group, Revision: rev, Hash: hex.EncodeToString(r.Hash[:]), Due: optionalTime(r.ScheduledMs)}
	if r.Body.Mode == ModeNone {
		return info, nil
	}
	hdr := r.Body.header(1)
	if r.Body.Mode == ModeStructured {
		hdr[headerContentType] = []string{contentStructured}
	}
	p, err := parse(hdr, r.Body.Data)
	if err != nil {
		return info, err
	}
	w := exportWriter{replace: r.exported(&p)}
	if p.mode == ModeStructured {
		err = eachMember(p.raw, w.member)
	} else {
		err = w.attributes(&p)
	}
	if err != nil {
		return info, err
	}
	info.Event, info.Lost = w.end(), r.lost(nowMs)
	if w.compacted {
		info.Lost = append(info.Lost, LostSpaces)
		slices.Sort(info.Lost)
	}
	return info, nil
}

// exported returns the attributes of an exported event that differ from those of the add; "" removes
// one.
func (r *Record) exported(p *parsed) []attribute {
	var set []attribute
	put := func(name, text string) { set = append(set, attribute{name: name, text: text}) }
	if s := r.Schedule; s == nil {
		at, ok := p.get(AttrAt)
		if ms, err := ParseTime(at.text); !ok || err != nil || ms != r.ScheduledMs {
			put(AttrAt, FormatTime(r.ScheduledMs))
		}
		put(AttrAfter, "")
	} else {
		if s.Every != "" && s.StartMs == 0 {
			put(AttrStart, FormatTime(s.AnchorMs))
		}
		if s.Limit > 0 && s.Fired > 0 {
			put(AttrLimit, strconv.Itoa(s.RunsLeft(int(s.Limit))))
		}
	}
	state, note := "", ""
	if r.State == StatePaused {
		state, note = ExportPaused, r.PauseNote
		if r.Schedule != nil {
			note = r.Schedule.PauseNote
		}
	}
	put(AttrExportState, state)
	put(AttrExportNote, note)
	return set
}

// lost returns the Lost… constants of a record, in alphabetical order.
func (r *Record) lost(nowMs int64) []string {
	var all []string
	note := func(lost bool, name string) {
		if lost {
			all = append(all, name)
		}
	}
	s := r.Schedule
	note(r.State == StateDelivered || r.State == StateRetrying, LostAttempts)
	note(s != nil && s.Backfill != nil, LostBackfill)
	note(slices.ContainsFunc(r.Body.Headers, func(h HeaderField) bool {
		name := strings.ToLower(h.Name)
		return name != headerContentType && !strings.HasPrefix(name, headerPrefix)
	}), LostHeaders)
	note(len(r.History) > 0, LostHistory)
	note(s != nil && s.NextMs != 0 && s.NextMs <= nowMs, LostMissed)
	note(s != nil && s.Last.Run != 0, LostRuns)
	note(s != nil && len(s.Manual) > 0, LostTriggers)
	note(s != nil && s.Waiting != nil, LostWaiting)
	return all
}

// exportWriter writes an event in structured mode, in one line.
type exportWriter struct {
	b       []byte
	replace []attribute
	// compacted is true if white space was removed from the data.
	compacted bool
}

// member copies a member of an event in structured mode, unless it is replaced.
func (w *exportWriter) member(name, value []byte) error {
	if slices.ContainsFunc(w.replace, func(a attribute) bool { return a.name == string(name) }) {
		return nil
	}
	w.name(string(name))
	if bytes.ContainsAny(value, "\n\r") {
		w.compacted = true
		var line bytes.Buffer
		if err := json.Compact(&line, value); err != nil {
			return badEvent("%s: %w", name, err)
		}
		value = line.Bytes()
	}
	w.b = append(w.b, value...)
	return nil
}

// attributes writes an event in binary mode.
func (w *exportWriter) attributes(p *parsed) error {
	for i := range p.attrs {
		a := &p.attrs[i]
		if a.kind == kindNull {
			continue
		}
		if err := w.member([]byte(a.name), quote(nil, a.text)); err != nil {
			return err
		}
	}
	switch {
	case !p.hasData:
	case !p.asText():
		return w.member([]byte("data_base64"), quote(nil, base64.StdEncoding.EncodeToString(p.data)))
	case isJSON(p.text("datacontenttype")):
		return w.member([]byte("data"), p.data)
	default:
		return w.member([]byte("data"), quote(nil, string(p.data)))
	}
	return nil
}

// name begins a member.
func (w *exportWriter) name(name string) {
	sep := byte(',')
	if len(w.b) == 0 {
		sep = '{'
	}
	w.b = append(quote(append(w.b, sep), name), ':')
}

// end writes the replaced attributes, and returns the event.
func (w *exportWriter) end() []byte {
	for _, a := range w.replace {
		if a.text != "" {
			w.name(a.name)
			w.b = quote(w.b, a.text)
		}
	}
	return append(w.b, '}')
}
