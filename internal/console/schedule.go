package console

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// stripRuns is the number of runs in the strip of a schedule.
const stripRuns = 30

// schedulePage is the page of a schedule.
type schedulePage struct {
	Timer    schemas.TimerInfo
	Row      scheduleRow
	Answers  []schemas.Answer // why, of the time in At, or of now
	At       string
	Problem  string // why there is no answer for At
	Preview  *schemas.PreviewReply
	Ahead    string // why there is no preview
	Runs     schemas.RunsReply
	Year     year
	Edit     []field
	Commands []command
	// MayEdit is true if the caller can change the definition: an event is of the caller's tenant.
	MayEdit bool
	Again   string
}

// showSchedule is the page of a schedule.
func showSchedule(q *request, info *schemas.TimerInfo) (view, error) {
	page := schedulePage{Timer: *info, Row: rowOf(*info, q.console.o.NowMs()), At: q.text("at"), Commands: q.commands(info), MayEdit: q.can.Write && info.Tenant == q.id.Tenant && !info.State.Final()}
	if !info.State.Final() {
		page.Again = pathOf(info.Timer) + "?known=" + strconv.FormatUint(info.Revision, 10)
	}
	why, err := q.ops.Why(q.Context(), schemas.WhyRequest{TimerRef: q.ref(), At: page.At})
	switch {
	case err != nil && page.At != "" && schemas.CodeOf(err) == schemas.CodeBadRequest:
		page.Problem = err.Error()
	case err != nil:
		return view{}, err
	}
	q.concealAnswers(why.Answers)
	page.Answers = why.Answers
	if page.Runs, err = q.runs(stripRuns); err != nil {
		return view{}, err
	}
	if !info.State.Final() {
		all, err := q.ops.Preview(q.Context(), schemas.PreviewRequest{TimerRef: q.ref(), N: schemas.MaxPreview})
		if err != nil {
			page.Ahead = err.Error()
		} else {
			page.Year = yearOf(all.Runs, info.Schedule.Zone, schemas.TimeOf(q.console.o.NowMs()))
			all.Runs = all.Runs[:min(len(all.Runs), previewRuns)]
			page.Preview = &all
		}
		page.Edit = editFields(info.Schedule)
	}
	return view{name: "schedule", title: info.ID, data: page}, nil
}

// runs returns the last runs of the schedule in the path.
func (q *request) runs(n int) (schemas.RunsReply, error) {
	reply, err := q.ops.Runs(q.Context(), schemas.RunsRequest{TimerRef: q.ref(), Limit: n, Cursor: q.text("cursor")})
	for i := range reply.Runs {
		q.id.ConcealOutcome(reply.Runs[i].Outcome)
	}
	return reply, err
}

// runsPage is a page of the runs of a schedule.
type runsPage struct {
	Timer string
	Runs  schemas.RunsReply
	More  string
}

// showRuns is a page of the runs of a schedule.
func showRuns(q *request) (view, error) {
	runs, err := q.runs(stripRuns)
	return view{name: "runs", title: "Runs", data: runsPage{q.PathValue("timer"), runs, q.more(runs.Cursor)}}, err
}

// triggerSchedule requests an extra run at once.
func triggerSchedule(q *request) (view, error) {
	_, err := q.ops.Trigger(q.Context(), schemas.TriggerRequest{TimerRef: q.ref(), Allow: q.text("allow") != ""}, q.caller())
	return q.change("triggered", err)
}

// backfillPage shows the nominal times of a backfill, and asks for a confirmation.
type backfillPage struct {
	Timer, Zone string
	Request     schemas.BackfillRequest
	Reply       schemas.BackfillReply
}

// backfillSchedule requests the runs of a range of time if the form confirms it. Otherwise it shows a
// backfillPage.
func backfillSchedule(q *request) (view, error) {
	dry := q.text("confirm") != "yes"
	ask := schemas.BackfillRequest{TimerRef: q.ref(), From: q.text("from"), To: q.text("to"), Rate: q.text("rate"), Again: q.text("again") != "", Allow: q.text("allow") != "", DryRun: dry}
	reply, err := q.ops.Backfill(q.Context(), ask, q.caller())
	if err != nil || !dry {
		return q.change("backfilled", err)
	}
	return view{name: "backfill", title: fmt.Sprintf("Backfill %d runs?", reply.Count), data: backfillPage{q.PathValue("timer"), reply.Timer.Schedule.Zone, ask, reply}}, nil
}

// editFields returns the fields that decide when a schedule runs, with its values.
func editFields(s *schemas.ScheduleInfo) []field {
	values := map[string]string{"cron": s.Cron, "every": s.Every, "tz": s.Zone, "exclude": strings.Join(s.Exclude, ","), "misfire": s.Misfire, "overlap": s.Overlap}
	if s.Limit > 0 {
		values["limit"] = strconv.FormatUint(uint64(s.Limit), 10)
	}
	if !s.End.IsZero() {
		values["end"] = schemas.FormatTime(s.End.UnixMilli())
	}
	if s.JitterMs > 0 {
		values["jitter"] = formatMs(s.JitterMs)
	}
	var out []field
	for _, f := range slices.Concat(whenFields, moreFields) {
		if f.recurs && f.Name != "start" {
			f.Value = values[f.Name]
			out = append(out, f)
		}
	}
	return out
}

// editPage shows the next runs before and after an edit, and asks for a confirmation.
type editPage struct {
	Timer         schemas.TimerInfo
	Fields        []field
	Before, After *schemas.PreviewReply
	Problem       string
}

// editSchedule changes the attributes that decide when a schedule runs, if the form confirms it.
// Otherwise it shows an editPage. The event keeps its data and all other attributes.
func editSchedule(q *request) (view, error) {
	info, err := q.ops.Describe(q.Context(), q.ref())
	if err != nil {
		return view{}, err
	}
	if info.Schedule == nil || info.Tenant != q.id.Tenant {
		return view{}, schemas.Errorf(schemas.CodeBadRequest, "only a schedule of your own tenant can be edited")
	}
	page := editPage{Timer: info, Fields: editFields(info.Schedule)}
	attributes, set := map[string]string{}, map[string]string{}
	for i := range page.Fields {
		f := &page.Fields[i]
		f.Value = q.text(f.Name)
		set[f.attribute] = f.Value
		if f.Value != "" {
			attributes[f.attribute] = f.Value
		}
	}
	if q.text("confirm") == "yes" {
		return q.update(&info, set)
	}
	before, err := q.ops.Preview(q.Context(), schemas.PreviewRequest{TimerRef: q.ref(), N: schemas.DefaultPreview})
	if err == nil {
		page.Before = &before
	}
	after, err := q.ops.Preview(q.Context(), schemas.PreviewRequest{TimerRef: schemas.TimerRef{ID: info.ID, Source: info.Source}, Attributes: attributes, N: schemas.DefaultPreview})
	if err != nil {
		page.Problem = err.Error()
		status, _, _ := httpapi.Explain(err)
		return view{status: status, name: "edit", title: "Change " + info.ID, data: page}, nil
	}
	page.After = &after
	return view{name: "edit", title: "Change " + info.ID + "?", data: page}, nil
}

// update replaces the attributes of a schedule's event at the revision that the form names.
func (q *request) update(info *schemas.TimerInfo, set map[string]string) (view, error) {
	t, err := q.ops.Get(q.Context(), q.ref())
	if err != nil {
		return view{}, err
	}
	header, data, err := withAttributes(&t.Record.Body, set)
	if err != nil {
		return view{}, err
	}
	ops, err := q.console.o.Service(q.id, 0) // an update compares the revision itself
	if err != nil {
		return view{}, err
	}
	_, err = ops.Update(q.Context(), header, data, router.UpdateRequest{Revision: q.text("revision")}, q.caller())
	return q.change("updated", err)
}

// withAttributes returns an event with other values of attributes; an empty value removes one.
func withAttributes(b *schemas.Body, set map[string]string) (header map[string][]string, data []byte, err error) {
	header, data = map[string][]string{}, b.Data
	for _, h := range b.Headers {
		name := strings.ToLower(h.Name)
		attribute, ok := strings.CutPrefix(name, "ce-")
		if _, replaced := set[attribute]; !ok || !replaced {
			header[h.Name] = append(header[h.Name], h.Value)
		}
	}
	if b.Mode == schemas.ModeBinary {
		for attribute, value := range set {
			if value != "" {
				header["ce-"+attribute] = []string{schemas.EncodeHeader(value)}
			}
		}
		return header, data, nil
	}
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(data, &members); err != nil {
		return nil, nil, schemas.Errorf(schemas.CodeInvalidEvent, "the event of the schedule cannot be read: %w", err)
	}
	for attribute, value := range set {
		delete(members, attribute)
		if value != "" {
			text, _ := json.Marshal(value) // strings always encode
			members[attribute] = text
		}
	}
	var out bytes.Buffer
	for i, name := range slices.Sorted(maps.Keys(members)) {
		quoted, _ := json.Marshal(name)
		fmt.Fprintf(&out, "%s%s:%s", map[bool]string{true: "{", false: ","}[i == 0], quoted, members[name])
	}
	out.WriteByte('}')
	return header, out.Bytes(), nil
}

// year is the strip of the days of the next year.
type year struct {
	// Days are the days from today in the zone; none if the schedule runs too often for a strip.
	Days []day
	// Text describes the strip in words.
	Text string
	Zone string
}

// day is a day of a strip, in the zone of the schedule.
type day struct {
	Date string
	Runs int
	// Kind is run, skipped, shifted, or empty for a day without runs. DST is true if daylight saving
	// begins or ends on the day.
	Kind string
	DST  bool
	X, Y int
	// Why has the reasons why runs of the day are shifted or skipped.
	Why []string
}

const (
	yearDays = 365
	dayPx    = 14
)

// yearOf makes the strip of a schedule from its next runs, at most schemas.MaxPreview.
func yearOf(runs []schemas.PreviewRun, zone string, now time.Time) year {
	loc, err := calendar.ProcessZones().Location(cmp.Or(zone, "UTC"))
	if err != nil || len(runs) == 0 {
		return year{}
	}
	now = now.In(loc)
	y := year{Zone: zone}
	begin := time.Date(now.Year(), now.Month(), now.Day(), 12, 0, 0, 0, loc)
	if len(runs) == schemas.MaxPreview && runs[len(runs)-1].At.Before(begin.AddDate(0, 0, yearDays)) {
		y.Text = fmt.Sprintf("It runs too often for a strip: its next %d runs are by %s.", len(runs), runs[len(runs)-1].Local)
		return y
	}
	byDate := map[string]int{}
	first := (int(begin.Weekday()) + 6) % 7 // Monday is the first row
	for i := range yearDays {
		noon := begin.AddDate(0, 0, i)
		_, before := noon.Add(-12 * time.Hour).Zone()
		_, after := noon.Add(12 * time.Hour).Zone()
		d := day{Date: noon.Format("Mon 2006-01-02"), DST: before != after, X: (first + i) / 7 * dayPx, Y: (first + i) % 7 * dayPx}
		byDate[d.Date] = i
		y.Days = append(y.Days, d)
	}
	with, skipped, shifted := 0, 0, 0
	for _, r := range runs {
		i, ok := byDate[r.At.In(loc).Format("Mon 2006-01-02")]
		if !ok {
			continue
		}
		d := &y.Days[i]
		for _, why := range r.Why {
			d.Why = append(d.Why, why.Text)
		}
		switch {
		case r.Skipped:
			skipped++
			d.Kind = cmp.Or(d.Kind, "skipped")
			continue
		case strings.Contains(codes(r.Why), "gap") || strings.Contains(codes(r.Why), "overlap"):
			shifted++
			d.Kind = "shifted"
		case d.Kind != "shifted":
			d.Kind = "run"
		}
		if d.Runs++; d.Runs == 1 {
			with++
		}
	}
	y.Text = fmt.Sprintf("%d of the next %d days have runs; %d runs are skipped, and %d are special because of daylight saving.", with, yearDays, skipped, shifted)
	return y
}

// codes returns the codes of reasons in one text.
func codes(why []schemas.ReasonInfo) string {
	var all []string
	for _, w := range why {
		all = append(all, w.Code)
	}
	return strings.Join(all, " ")
}

// Special returns the days of a strip that need an explanation.
func (y year) Special() (out []day) {
	for _, d := range y.Days {
		if d.DST || len(d.Why) > 0 && d.Kind != "run" {
			out = append(out, d)
		}
	}
	return out[:min(len(out), maxSpecial)]
}

// maxSpecial bounds the days that a strip explains in words.
const maxSpecial = 40
