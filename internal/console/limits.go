package console

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/schemas"
)

// limited is the kind of a limit: a limit of callbacks or of adds.
type limited string

const (
	callbacks limited = "callbacks"
	adds      limited = "adds"
)

// limitField is a field of a limit.
type limitField struct {
	field
	// of is the kind of limit that has the field; empty for both.
	of limited
}

// limitFields are the fields of a limit.
var limitFields = []limitField{
	{field{Name: "rate", Label: "rate", Hint: "100/m"}, ""},
	{field{Name: "burst", Label: "burst", Hint: "10"}, ""},
	{field{Name: "parallel", Label: "calls that run at once", Hint: "5"}, callbacks},
	{field{Name: "circuit", Label: "connection errors until the circuit opens", Hint: "5; 0 for never"}, callbacks},
	{field{Name: "pending", Label: "pending timers (adds only)", Hint: "100000"}, adds},
	{field{Name: "schedules", Label: "pending schedules (adds only)", Hint: "500"}, adds},
	{field{Name: "services", Label: "services (adds of a tenant only)", Hint: "20"}, adds},
	{field{Name: "bytes", Label: "bytes of pending events (adds only)", Hint: "1000000000"}, adds},
}

// formOf returns the fields of a kind of limit, all fields if of is empty, with the values of l. A nil
// l has no values.
func formOf(of limited, l *schemas.FlowLimitInfo) []field {
	values := map[string]string{}
	if l != nil {
		values["rate"] = l.Rate
		for name, n := range map[string]int64{"burst": int64(l.Burst), "parallel": int64(l.Parallel), "pending": int64(l.Pending), "schedules": int64(l.Schedules), "services": int64(l.Services), "bytes": l.Bytes} {
			if n > 0 {
				values[name] = strconv.FormatInt(n, 10)
			}
		}
		if l.Circuit != nil {
			values["circuit"] = strconv.Itoa(*l.Circuit)
		}
	}
	var out []field
	for _, f := range limitFields {
		if f.Value = values[f.Name]; of == "" || f.of == "" || f.of == of {
			out = append(out, f.field)
		}
	}
	return out
}

// limitsPage is the page of the limits of flow keys, and of adds.
type limitsPage struct {
	Limits []schemas.FlowLimitInfo
	Holds  []schemas.FlowHoldInfo
	// Form is a new limit.
	Form []field
}

// listLimits is the page of all limits, and of the flow keys whose calls stopped because of an answer
// of the target.
func listLimits(q *request) (view, error) {
	list, err := q.ops.FlowList(q.Context(), struct{}{})
	for i := range list.Limits {
		q.concealLimit(&list.Limits[i])
	}
	for i := range list.Holds {
		list.Holds[i].Reason = q.id.ConcealText(list.Holds[i].Reason)
	}
	return view{name: "limits", title: "Limits", data: limitsPage{list.Limits, list.Holds, formOf("", nil)}}, err
}

// concealLimit removes from a limit what the caller may not see; nil is no limit.
func (q *request) concealLimit(l *schemas.FlowLimitInfo) {
	if l != nil && l.Target != nil {
		l.Target.URL = q.id.ConcealText(l.Target.URL)
	}
}

// limitPage is the page of a flow key or pattern.
type limitPage struct {
	schemas.FlowStatus
	// Own is true if the limit was set for the key itself, not for a pattern that matches the key.
	Own  bool
	Form []field
	// Adds is true for a limit of adds.
	Adds bool
	// Pattern is true for a pattern. The page then lists the keys that match it.
	Pattern bool
}

// showLimit is the page of a flow key: its limit, the reason why its calls stopped, and the use of the
// limit.
func showLimit(q *request) (view, error) {
	st, err := q.ops.FlowGet(q.Context(), schemas.FlowRequest{Key: q.text("key")})
	if err != nil {
		return view{}, err
	}
	q.concealLimit(st.Limit)
	if st.Hold != nil {
		st.Hold.Reason = q.id.ConcealText(st.Hold.Reason)
	}
	page := limitPage{FlowStatus: st, Own: st.Limit != nil && st.Limit.Key == st.Key && st.Limit.Revision > 0, Adds: schemas.LimitsAdds(st.Key), Pattern: strings.Contains(st.Key, "*")}
	of, l := callbacks, st.Limit
	if page.Adds {
		of = adds
	}
	if !page.Own {
		l = nil
	}
	page.Form = formOf(of, l)
	return view{name: "limit", title: st.Key, data: page}, nil
}

// limitChangePage shows a limit before and after a change, and asks for a confirmation.
type limitChangePage struct {
	Key      string
	Revision string
	Form     []field
	Reply    *schemas.FlowReply
	Problem  string
}

// setLimit stores a limit if the form confirms it. Otherwise it shows a limitChangePage.
func setLimit(q *request) (view, error) {
	page := limitChangePage{Key: q.text("key"), Revision: q.text("revision"), Form: formOf("", nil)}
	for i := range page.Form {
		page.Form[i].Value = q.text(page.Form[i].Name)
	}
	ask, err := q.limitOf(page.Form)
	var reply schemas.FlowReply
	if err == nil {
		reply, err = q.ops.FlowSet(q.Context(), ask, q.caller())
	}
	code := schemas.CodeOf(err)
	switch {
	case err == nil && !ask.DryRun:
		return view{location: query("/limits/key", "key", ask.Key), notice: "limited"}, nil
	case err == nil:
		page.Reply = &reply
		return view{name: "limitchange", title: "Change the limit of " + ask.Key + "?", data: page}, nil
	case code != schemas.CodeBadRequest && code != schemas.CodeInvalidAttribute:
		return view{}, err
	}
	page.Problem = err.Error()
	status, _, _ := httpapi.Explain(err)
	return view{status: cmp.Or(status, http.StatusBadRequest), name: "limitchange", title: "Limit of a flow key", data: page}, nil
}

// limitOf reads a limit from the fields of a form.
func (q *request) limitOf(form []field) (schemas.FlowSetRequest, error) {
	ask := schemas.FlowSetRequest{Key: q.text("key"), Rate: q.text("rate"), DryRun: q.text("confirm") != "yes"}
	var err error
	if ask.Revision, err = q.revision(); err != nil {
		return ask, err
	}
	numbers := map[string]int64{}
	for i := range form {
		f := &form[i]
		if f.Name == "rate" || f.Value == "" {
			continue
		}
		n, err := strconv.ParseInt(f.Value, 10, 64)
		if err != nil || n < 0 || n < 1 && f.Name != "circuit" || int64(int(n)) != n {
			f.Problem = "it must be a number"
			return ask, schemas.Errorf(schemas.CodeBadRequest, "%s: %.40q is no number above 0; leave the field empty for no limit", f.Label, f.Value)
		}
		numbers[f.Name] = n
	}
	ask.Burst, ask.Parallel, ask.Pending = int(numbers["burst"]), int(numbers["parallel"]), int(numbers["pending"])
	ask.Schedules, ask.Services, ask.Bytes = int(numbers["schedules"]), int(numbers["services"]), numbers["bytes"]
	if n, ok := numbers["circuit"]; ok {
		circuit := int(n)
		ask.Circuit = &circuit
	}
	return ask, nil
}

// flowRequest is the change of a flow key that a form asks for.
func (q *request) flowRequest() (schemas.FlowRequest, error) {
	revision, err := q.revision()
	return schemas.FlowRequest{Key: q.text("key"), Note: q.text("note"), Revision: revision}, err
}

// limitChanged leads back to the page of a flow key.
func (q *request) limitChanged(notice string, err error) (view, error) {
	return view{location: query("/limits/key", "key", q.text("key")), notice: notice}, err
}

// pauseLimit stops the calls of a flow key.
func pauseLimit(q *request) (view, error) {
	ask, err := q.flowRequest()
	if err == nil {
		_, err = q.ops.FlowPause(q.Context(), ask, q.caller())
	}
	return q.limitChanged("stopped", err)
}

// resumeLimit ends a pause. A limit that had only a pause is then gone, so it leads to the list.
func resumeLimit(q *request) (view, error) {
	ask, err := q.flowRequest()
	if err == nil {
		_, err = q.ops.FlowResume(q.Context(), ask, q.caller())
	}
	return view{location: "/limits", notice: "released"}, err
}

// resetLimit lets the calls of a flow key begin again that stopped because of an answer of its target.
func resetLimit(q *request) (view, error) {
	_, err := q.ops.FlowReset(q.Context(), schemas.FlowResetRequest{Key: q.text("key")}, q.caller())
	return q.limitChanged("reset", err)
}

// deleteLimit deletes a limit.
func deleteLimit(q *request) (view, error) {
	ask, err := q.flowRequest()
	if err == nil {
		_, err = q.ops.FlowDelete(q.Context(), ask, q.caller())
	}
	return view{location: "/limits", notice: "unlimited"}, err
}
