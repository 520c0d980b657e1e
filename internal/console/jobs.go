package console

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// A job is an operation on many timers or dead letters, which a filter or a selection names. A page
// lists them before the change. The form of that page carries the change out in steps. Each step
// changes some of them, and answers with the result and a form for the rest, which a browser with
// JavaScript sends by itself. A job keeps no state between the requests, and neither do the operations
// (see router.Service.BulkCancel).

const (
	// stepItems is the number of items after which a step, or the list before the change, ends. One call
	// may exceed it by stepPage.
	stepItems = 300
	// stepPage is the number of items of one call of an operation.
	stepPage = 50
	// stepTime is the time after which a step begins no other call. The sum of stepTime and the
	// time-out of an operation must stay below the time-out of the HTTP server.
	stepTime = 10 * time.Second
	// shownItems bounds the items that a page of a job lists.
	shownItems = 50
	// maxReasons bounds the reasons that a form carries from step to step.
	maxReasons = 50
)

// job is an operation on many timers or dead letters.
type job struct {
	// path is the address of the form, and back the page to return to.
	path, back string
	// ask is the question before the change, with %s for a number. done is the result, with %d.
	ask, done string
	// lead is a further note to the question, and button is the text of the button.
	lead, button string
	danger       bool
	// fields are the fields of the form that name the items.
	fields url.Values
	// sure is true for a job that needs no confirmation.
	sure bool
	// step changes the page of items at a cursor, or only lists them.
	step func(dry bool, cursor string) (jobStep, error)
}

// jobStep is the result for one page of items.
type jobStep struct {
	schemas.BulkCounts
	timers  []schemas.TimerInfo
	letters []schemas.DeadInfo
	// cursor continues with the next page of items; "" after the last.
	cursor string
	// last is the due time of the last replay at a rate.
	last time.Time
}

// jobPage asks for a confirmation, or shows the result so far.
type jobPage struct {
	Path, Back, Button, Lead string
	Danger                   bool
	Fields                   []hiddenField
	// Asks is true before anything is done.
	Asks    bool
	Counts  schemas.BulkCounts
	Timers  []schemas.TimerInfo
	Letters []schemas.DeadInfo
	// Others is the number of items that the page does not list.
	Others int
	// Left is true if items are left, from Cursor.
	Left   bool
	Cursor string
	Last   time.Time
	// Problem is the error that ended the step. Again is true if the rest may succeed later; the
	// browser then repeats it by itself.
	Problem string
	Again   bool
}

// hiddenField is a field that a form sends again.
type hiddenField struct{ Name, Value string }

// runJob carries out a step of a job if the form confirms it. Otherwise it lists the items that the
// job would change.
func (q *request) runJob(j *job) (view, error) {
	p := jobPage{Path: j.path, Back: j.back, Button: j.button, Lead: j.lead, Danger: j.danger, Asks: !j.sure && q.text("confirm") != "yes"}
	for _, name := range slices.Sorted(maps.Keys(j.fields)) {
		for _, value := range j.fields[name] {
			p.Fields = append(p.Fields, hiddenField{name, value})
		}
	}
	cursor := q.text("cursor")
	if p.Asks {
		cursor = ""
	} else {
		p.Counts = q.earlierSteps()
	}
	if err := q.steps(j, &p, cursor); err != nil {
		return view{}, err
	}
	title := fmt.Sprintf(j.done, p.Counts.Done)
	if p.Asks {
		number := strconv.Itoa(p.Counts.Matched)
		if p.Left {
			number += " or more"
		}
		title = fmt.Sprintf(j.ask, number)
	} else if p.Left {
		title += ", and there are others"
	}
	return view{name: "job", title: title, data: p}, nil
}

// steps calls the step of a job until no items are left, or stepItems or stepTime is reached. It returns
// an error only if nothing was done. After an error the counts may lack the items of the last call,
// because some operations do not report them.
func (q *request) steps(j *job, p *jobPage, cursor string) error {
	begun, items := time.Now(), 0
	for {
		s, err := j.step(p.Asks, cursor)
		if err != nil {
			p.Again = schemas.CodeOf(err) == schemas.CodeUnavailable
			if p.Asks || !p.Again && p.Counts.Done+p.Counts.Refused+s.Done == 0 {
				return err
			}
			s.Refused, s.Reasons = 0, nil // the page is done again, with the items that stayed
			p.Problem, p.Left = q.id.ConcealText(err.Error()), true
		}
		p.add(q, &s)
		if p.Cursor = cursor; p.Problem != "" {
			return nil
		}
		items, cursor = items+s.Matched, s.cursor
		p.Cursor = cursor
		if p.Left = cursor != ""; !p.Left || items >= stepItems || time.Since(begun) > stepTime {
			return nil
		}
	}
}

// add adds the result of a page.
func (p *jobPage) add(q *request, s *jobStep) {
	refused := s.Refused
	p.Counts.Add(s.BulkCounts)
	p.Counts.Refused += refused - sum(s.Reasons) // operations on a group report no reasons
	if !s.last.IsZero() {
		p.Last = s.last
	}
	if !p.Asks {
		return
	}
	for i := range s.timers {
		if len(p.Timers) < shownItems {
			q.id.Conceal(&s.timers[i])
			p.Timers = append(p.Timers, s.timers[i])
		}
	}
	for i := range s.letters {
		if len(p.Letters) < shownItems {
			s.letters[i].ErrorData = q.id.ConcealText(s.letters[i].ErrorData)
			p.Letters = append(p.Letters, s.letters[i])
		}
	}
	p.Others = p.Counts.Matched - len(p.Timers) - len(p.Letters)
}

func sum(reasons map[schemas.Code]int) (n int) {
	for _, k := range reasons {
		n += k
	}
	return n
}

// earlierSteps returns the counts of the earlier steps, from the form.
func (q *request) earlierSteps() (c schemas.BulkCounts) {
	number := func(text string) int {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return 0
		}
		return n
	}
	c.Done = number(q.text("done"))
	reasons := q.PostForm["reason"]
	for _, text := range reasons[:min(len(reasons), maxReasons)] {
		code, n, _ := strings.Cut(text, "=")
		c.Refuse(schemas.Code(code), number(n))
	}
	c.Refused = max(c.Refused, number(q.text("refused")))
	return c
}

// cancelAll cancels the timers that a filter selects.
func cancelAll(q *request) (view, error) {
	b, err := q.bulkFilter()
	if err != nil {
		return view{}, err
	}
	return q.runJob(&job{
		path: "/timers/cancel-all", back: "/timers", ask: "Cancel %s timers?", done: "%d timers are cancelled", button: "Cancel them", danger: true, fields: q.fields("service", "group", "state"),
		step: func(dry bool, cursor string) (jobStep, error) {
			b.DryRun, b.Cursor = dry, cursor
			r, err := q.ops.BulkCancel(q.Context(), b, q.caller())
			return jobStep{BulkCounts: r.BulkCounts, timers: r.Timers, cursor: r.Cursor}, err
		},
	})
}

// moveAll gives the timers that a filter selects one due time.
func moveAll(q *request) (view, error) {
	b, err := q.bulkFilter()
	if err != nil {
		return view{}, err
	}
	at, err := q.dueTime()
	if err != nil {
		return view{}, err
	}
	fields := q.fields("service", "group", "state")
	fields.Set("at", at)
	return q.runJob(&job{
		path: "/timers/reschedule-all", back: "/timers", ask: "Reschedule %s timers?", done: "%d timers are rescheduled", button: "Reschedule them", fields: fields,
		lead: "They will be due at " + at + ". Schedules, and timers that are due then already, are not selected.",
		step: func(dry bool, cursor string) (jobStep, error) {
			b.DryRun, b.Cursor = dry, cursor
			r, err := q.ops.BulkReschedule(q.Context(), schemas.BulkRescheduleRequest{BulkRequest: b, At: at}, q.caller())
			return jobStep{BulkCounts: r.BulkCounts, timers: r.Timers, cursor: r.Cursor}, err
		},
	})
}

// bulkFilter returns the filter in the form.
func (q *request) bulkFilter() (schemas.BulkRequest, error) {
	b := schemas.BulkRequest{Service: q.text("service"), Group: q.text("group"), Limit: stepPage}
	if text := q.text("state"); text != "" {
		state, err := schemas.ParseState(text)
		if err != nil {
			return b, schemas.Errorf(schemas.CodeBadRequest, "state: %w", err)
		}
		b.States = []schemas.State{state}
	}
	return b, nil
}

// fields returns fields of the form that are not empty.
func (q *request) fields(names ...string) url.Values {
	values := url.Values{}
	for _, name := range names {
		if text := q.text(name); text != "" {
			values.Set(name, text)
		}
	}
	return values
}

// dueTime returns the due time of a form, in RFC 3339: field at, or the present plus field in. The
// page that asks for a confirmation so shows the exact time that the change sets.
func (q *request) dueTime() (string, error) {
	at, in := q.text("at"), q.text("in")
	switch {
	case (at == "") == (in == ""):
		return "", schemas.Errorf(schemas.CodeBadRequest, "give the due time: in or at")
	case at != "":
		ms, err := schemas.ParseTime(at)
		if err != nil {
			return "", schemas.Errorf(schemas.CodeBadRequest, "at %.80q: %w", at, err)
		}
		return schemas.FormatTime(ms), nil
	}
	d, err := schemas.ParseDuration(in)
	if err != nil {
		return "", schemas.Errorf(schemas.CodeBadRequest, "in %.80q: %w", in, err)
	}
	return schemas.FormatTime(q.console.o.NowMs() + d.Milliseconds()), nil
}
