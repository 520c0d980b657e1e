package console

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/belfryio/belfry/schemas"
)

// timerPage is the page of a timer that fires once, or of a run of a schedule.
type timerPage struct {
	Timer schemas.TimerInfo
	// Why explains in words the past and the next step of the timer.
	Why   schemas.Answer
	Steps []step
	Event *event
	// Commands are the command lines with the same effect as the page.
	Commands []command
	// Replay is true if the timer has a dead letter that can be replayed.
	Replay bool
	// From is set if the record is gone and the page comes from the history; otherwise nil.
	From *asOf
	// Again is the address that a browser polls: it answers with this page when the timer has changed.
	// It is "" for a timer that will not change.
	Again string
}

// step is a step in the life of a timer.
type step struct {
	Name string
	At   time.Time // zero if it is not known
	Text string
	// Kind is done, wait, good or bad.
	Kind string
	// Answer is the start of the callee's answer; "" for none.
	Answer string
}

// command is a command line that can be copied.
type command struct{ Name, Text string }

// showTimer is the page of one timer or schedule. If the record has expired, the page comes from the
// history.
func showTimer(q *request) (view, error) {
	info, err := q.inspect()
	if err == nil && info.From != schemas.FromHistory {
		var v view
		if v, err = showRecord(q, info); schemas.CodeOf(err) != schemas.CodeNotFound {
			return v, err
		}
	}
	if err != nil && schemas.CodeOf(err) != schemas.CodeNotFound {
		return view{}, err
	}
	return showRemembered(q, cmp.Or(err, error(schemas.ErrNotFound)), info.Claim)
}

// inspect describes the timer in the path. For a page that polls for changes, it looks up the claim
// only if the timer has changed.
func (q *request) inspect() (schemas.TimerInfo, error) {
	get := schemas.GetRequest{TimerRef: q.ref(), Claim: true}
	if known, err := strconv.ParseUint(q.text("known"), 10, 64); err == nil {
		info, err := q.ops.Describe(q.Context(), get.TimerRef)
		if err != nil || info.Revision == known {
			return info, err
		}
	}
	return q.ops.Inspect(q.Context(), get)
}

// showRecord is the page of a timer that has a record.
func showRecord(q *request, info schemas.TimerInfo) (view, error) {
	if known, err := strconv.ParseUint(q.text("known"), 10, 64); err == nil && known == info.Revision {
		return view{}, nil
	}
	q.id.Conceal(&info)
	if info.Schedule != nil {
		return showSchedule(q, &info)
	}
	page := timerPage{Timer: info, Commands: q.commands(&info), Replay: info.State == schemas.StateFail}
	if !info.State.Final() {
		page.Again = pathOf(info.Timer) + "?known=" + strconv.FormatUint(info.Revision, 10)
	}
	var err error
	if page.Why, err = q.why(""); err != nil {
		return view{}, err
	}
	t, err := q.ops.Get(q.Context(), q.ref())
	if err != nil {
		return view{}, err
	}
	page.Steps = stepsOf(&info, t.Record.Epoch)
	if q.can.Payload {
		page.Event = eventOf(&t.Record.Body)
	}
	return view{name: "timer", title: cmp.Or(info.ID, info.Timer.String()), data: page}, nil
}

// why returns the first answer to why of the timer in the path.
func (q *request) why(at string) (schemas.Answer, error) {
	reply, err := q.ops.Why(q.Context(), schemas.WhyRequest{TimerRef: q.ref(), At: at})
	if err != nil || len(reply.Answers) == 0 {
		return schemas.Answer{}, err
	}
	q.concealAnswers(reply.Answers)
	return reply.Answers[0], nil
}

func (q *request) concealAnswers(answers []schemas.Answer) {
	for i := range answers {
		a := &answers[i]
		a.Text = q.id.ConcealText(a.Text)
		for n := range a.Notes {
			a.Notes[n] = q.id.ConcealText(a.Notes[n])
		}
	}
}

// stepsOf returns the line of proof: each step with its time, and the operations between them.
// epoch is the clock epoch of the owner that claimed it.
func stepsOf(info *schemas.TimerInfo, epoch uint64) []step {
	var steps []step
	add := func(s step) { steps = append(steps, s) }
	if !info.Added.IsZero() {
		add(step{Name: "added", At: info.Added, Kind: "done", Text: "JetStream acknowledged the record."})
	}
	for _, op := range info.History {
		add(step{Name: op.Op, At: op.At, Kind: "done", Text: byWhom(op)})
	}
	due := step{Name: "due", At: info.Scheduled, Kind: "done"}
	if info.State.Waits() {
		due.Kind = "wait"
	}
	add(due)
	if !info.Fired.IsZero() {
		late := max(info.Fired.UnixMilli()-max(info.Scheduled.UnixMilli(), info.Added.UnixMilli()), 0)
		claimed, published := claimTexts(info, epoch)
		add(step{Name: "claimed", At: info.Fired, Kind: "done", Text: fmt.Sprintf("%s claimed the run %s after it was due.", claimed, formatMs(late))})
		add(step{Name: "published", At: info.Fired, Kind: "done", Text: published})
	}
	for _, a := range info.LastAttempts {
		s := step{Name: fmt.Sprintf("attempt %d of %d", a.Attempt, info.MaxAttempts), At: a.At, Kind: "good", Answer: a.Response}
		s.Text = "It took " + formatMs(a.TookMs) + "."
		switch result := a.Text(); {
		case a.Error != "":
			s.Kind, s.Text = "bad", s.Text+" "+result
		case result != "":
			s.Text = result + ". " + s.Text
		}
		add(s)
	}
	sortSteps(steps)
	switch {
	case !info.Next.IsZero() && !info.State.Final():
		steps = append(steps, step{Name: "next attempt", At: info.Next, Kind: "wait"})
	case info.State.Final():
		kind := map[schemas.State]string{schemas.StateFail: "bad", schemas.StateSuccess: "good"}[info.State]
		steps = append(steps, step{Name: info.State.String(), At: info.Done, Kind: cmp.Or(kind, "done")})
	}
	return steps
}

// claimTexts return two sentences: which node claimed a timer, and to which subject its event went.
func claimTexts(info *schemas.TimerInfo, epoch uint64) (claimed, published string) {
	claimed = fmt.Sprintf("The owner of its shard, in epoch %d,", epoch)
	published = fmt.Sprintf("Its event went to %s with the id %s", schemas.SubjectFired(schemas.TenantService(info.Tenant, info.Service)), publishedID(info))
	c := info.Claim
	if c != nil && c.Node != "" {
		claimed = fmt.Sprintf("Node %s, the owner of its shard in epoch %d,", c.Node, c.Epoch)
	}
	if c != nil && c.Sequence != 0 {
		return claimed, fmt.Sprintf("%s. It is sequence %d of TIMERS_FIRED.", published, c.Sequence)
	}
	return claimed, published + "."
}

// publishedID returns the message id of the fired event of a timer.
func publishedID(info *schemas.TimerInfo) string {
	if info.Origin != nil {
		return schemas.RunID{Timer: info.Origin.Schedule, Run: info.Run}.String()
	}
	return schemas.RunID{Timer: info.Timer, Run: max(info.Run, 1)}.String()
}

// byWhom names the caller of an operation, and whether its name is verified.
func byWhom(op schemas.OperationInfo) string {
	switch verified := cmp.Or(op.User, op.Account); {
	case op.By != "" && verified != "":
		return fmt.Sprintf("By %s, who gave the name %s.", verified, op.By)
	case op.By != "":
		return fmt.Sprintf("By a caller that gave the name %s, which is not verified.", op.By)
	case verified != "":
		return fmt.Sprintf("By %s.", verified)
	}
	return ""
}

// sortSteps sorts by time, and keeps the order of equal times.
func sortSteps(steps []step) {
	slices.SortStableFunc(steps, func(a, b step) int { return a.At.Compare(b.At) })
}

// event is the event of a timer, as its sender sent it.
type event struct {
	Headers []schemas.HeaderField
	Data    string
	// Binary says that Data is Base64.
	Binary bool
}

// maxShownData bounds the data that a page shows, in bytes.
const maxShownData = 64 << 10

// eventOf returns the event of a record; nil if the record has none any more.
func eventOf(b *schemas.Body) *event {
	if b.Mode == schemas.ModeNone {
		return nil
	}
	e := &event{Headers: b.Headers}
	data := b.Data
	var pretty bytes.Buffer
	if json.Indent(&pretty, data, "", "  ") == nil {
		data = pretty.Bytes()
	}
	cut := len(data) > maxShownData
	if cut {
		data = data[:maxShownData]
	}
	e.Data = strings.ToValidUTF8(string(data), "")
	if !utf8.Valid(data) && !cut {
		e.Data, e.Binary = base64.StdEncoding.EncodeToString(data), true
	}
	if cut {
		e.Data += fmt.Sprintf("\n… the first %d of %d bytes", maxShownData, len(b.Data))
	}
	return e
}

// commands are the command lines about a timer.
func (q *request) commands(info *schemas.TimerInfo) []command {
	scheme := "http"
	if q.TLS != nil {
		scheme = "https"
	}
	auth := ""
	if q.id.Name != "" {
		auth = ` -H "Authorization: Bearer $BELFRY_TOKEN"`
	}
	base := (&url.URL{Scheme: scheme, Host: q.Host, Path: "/v1/timers/" + info.Timer.String()}).String()
	list := []command{
		{"see it, by HTTP", "curl" + auth + " " + shellQuote(base)},
		{"see it", "belfry get " + shellQuote(info.Timer.String())},
		{"why", "belfry why " + shellQuote(info.Timer.String())},
	}
	if !info.State.Final() {
		list = append(list, command{"cancel it, by HTTP", "curl -X DELETE" + auth + " " + shellQuote(base)}, command{"cancel it", "belfry cancel " + shellQuote(info.Timer.String())})
	}
	return list
}

// change leads back to the page of the timer after a change.
func (q *request) change(notice string, err error) (view, error) {
	return view{location: "/timers/" + url.PathEscape(q.PathValue("timer")), notice: notice}, err
}

// cancelTimer cancels the timer or schedule.
func cancelTimer(q *request) (view, error) {
	_, err := q.ops.Cancel(q.Context(), schemas.CancelRequest{TimerRef: q.ref()}, q.caller())
	return q.change("cancelled", err)
}

// moveTimer gives a pending timer another due time.
func moveTimer(q *request) (view, error) {
	at, in := q.text("at"), q.text("in")
	_, err := q.ops.Reschedule(q.Context(), schemas.RescheduleRequest{TimerRef: q.ref(), At: at, After: in}, q.caller())
	return q.change("moved", err)
}

// fireTimer makes a pending timer due at once.
func fireTimer(q *request) (view, error) {
	_, err := q.ops.Reschedule(q.Context(), schemas.RescheduleRequest{TimerRef: q.ref(), After: "0s"}, q.caller())
	return q.change("fired", err)
}

// pauseTimer pauses a timer or schedule.
func pauseTimer(q *request) (view, error) {
	_, err := q.ops.Pause(q.Context(), schemas.PauseRequest{TimerRef: q.ref(), Note: q.text("note")}, q.caller())
	return q.change("paused", err)
}

// resumeTimer resumes a timer or schedule.
func resumeTimer(q *request) (view, error) {
	_, err := q.ops.Resume(q.Context(), schemas.ResumeRequest{TimerRef: q.ref(), CatchUp: q.text("catchup")}, q.caller())
	return q.change("resumed", err)
}

// replayTimer replays the dead letter of a timer.
func replayTimer(q *request) (view, error) {
	reply, err := q.ops.DeadReplay(q.Context(), schemas.ReplayRequest{TimerRef: q.ref()}, q.caller())
	if err == nil && reply.Replayed == 0 {
		err = schemas.Errorf(schemas.CodeNotFound, "the timer has no dead letter that can be replayed")
	}
	return q.change("replayed", err)
}
