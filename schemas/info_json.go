package schemas

import "strconv"

// AppendInfo appends what FromRecord says of a record, as JSON: the answer to
// every cancel, without reflection.
func AppendInfo(b []byte, id TimerID, r *Record, rev uint64) []byte {
	b = append(b, `{"timer":"`...)
	b = id.AppendTo(b)
	b = quote(append(b, `","id":`...), r.EventID)
	b = quote(append(b, `,"source":`...), r.Source)
	b = quote(append(b, `,"type":`...), r.Type)
	b = quote(append(b, `,"service":`...), r.Service)
	if r.Group != "" {
		b = quote(append(b, `,"group":`...), r.Group)
	}
	if r.Callback != "" {
		b = quote(append(b, `,"callback":`...), RedactURL(r.Callback))
	}
	b = quote(append(b, `,"state":`...), r.State.String())
	b = quoteTime(append(b, `,"scheduled":`...), r.ScheduledMs)
	b = quoteTime(append(b, `,"due":`...), r.DueMs)
	for _, t := range [...]struct {
		name string
		ms   int64
	}{{`,"added":`, r.AddedMs}, {`,"fired":`, r.FiredMs}, {`,"done":`, r.DoneMs}, {`,"next":`, r.NextMs}, {`,"until":`, r.retryUntilMs()}} {
		if t.ms != 0 {
			b = quoteTime(append(b, t.name...), t.ms)
		}
	}
	b = strconv.AppendUint(append(b, `,"run":`...), uint64(r.Run), 10)
	b = strconv.AppendUint(append(b, `,"attempts":`...), uint64(r.Attempt), 10)
	b = strconv.AppendUint(append(b, `,"maxattempts":`...), uint64(r.MaxAttempt), 10)
	if o := r.Outcome; o.Code != 0 || o.Error != "" || len(o.Response) > 0 {
		b = append(b, `,"outcome":{`...)
		sep := ""
		if o.Code != 0 {
			b = strconv.AppendInt(append(b, `"code":`...), int64(o.Code), 10)
			sep = ","
		}
		if o.Error != "" {
			b = quote(append(append(b, sep...), `"error":`...), o.Error)
			sep = ","
		}
		if text := cleanText(string(o.Response)); text != "" {
			b = quote(append(append(b, sep...), `"response":`...), text)
		}
		b = append(b, '}')
	}
	if len(r.History) > 0 {
		b = appendOperations(b, r.History)
	}
	b = strconv.AppendUint(append(b, `,"revision":`...), rev, 10)
	return append(b, '}')
}

// Append appends the answer to an add as JSON.
func (a *AddReply) Append(b []byte) []byte {
	b = append(b, `{"timer":"`...)
	b = a.Timer.AppendTo(b)
	b = quote(append(b, `","due":`...), a.Due)
	b = strconv.AppendBool(append(b, `,"duplicate":`...), a.Duplicate)
	b = quote(append(b, `,"state":`...), a.State.String())
	if a.Remark != "" {
		b = quote(append(b, `,"remark":`...), a.Remark)
	}
	return append(b, '}')
}

func quoteTime(b []byte, ms int64) []byte { return append(appendTime(append(b, '"'), ms), '"') }
