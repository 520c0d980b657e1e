package console

import (
	"cmp"
	"context"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// lettersPage is the number of dead letters that one call reads. maxLetters bounds the dead letters
	// that one page groups, and the number that a form may select: a group is replayed as a whole.
	lettersPage = 200
	maxLetters  = schemas.MaxBulkSequences
	// lettersTime is the time after which a page reads no further dead letters.
	lettersTime = 2 * time.Second
	// shownLetters bounds the dead letters of a group that a page lists.
	shownLetters = 50
)

// deadPage is the page of dead letters.
type deadPage struct {
	Service, Host string
	Groups        []*deadGroup
	// Looked is the number of dead letters that were read. Later is true if the page continues an
	// earlier page.
	Looked int
	Later  bool
	More   string
}

// deadGroup are the dead letters of a page with the same cause and target.
type deadGroup struct {
	// Target is the host of the callback, or the service if it has none.
	Target, Code, Cause string
	// Consumer is set for dead letters of a durable consumer of fired events. They have no callback, so
	// they cannot be replayed.
	Consumer string
	Count    int
	// Letters are the first ones, and Others the sequences of the rest.
	Letters []schemas.DeadInfo
	Others  []uint64
}

// listDead is the page of dead letters, grouped by cause and target.
func listDead(q *request) (view, error) {
	page := deadPage{Service: q.text("service"), Host: strings.ToLower(q.text("host")), Later: q.text("cursor") != ""}
	ask := schemas.DeadListRequest{Service: page.Service, Cursor: q.text("cursor"), Limit: lettersPage}
	var letters []schemas.DeadInfo
	for begun := time.Now(); ; {
		reply, err := q.ops.DeadList(q.Context(), ask)
		if err != nil {
			return view{}, err
		}
		page.Looked += len(reply.Dead)
		for _, d := range reply.Dead {
			if page.Host == "" || page.Host == d.Host {
				d.ErrorData = q.id.ConcealText(d.ErrorData)
				letters = append(letters, d)
			}
		}
		if ask.Cursor = reply.Cursor; ask.Cursor == "" || page.Looked >= maxLetters || time.Since(begun) > lettersTime {
			break
		}
	}
	page.Groups, page.More = groupsOf(letters), q.more(ask.Cursor)
	return view{name: "dead", title: "Dead letters", data: page}, nil
}

// varying are the parts of an error that differ between letters of the same cause.
var varying = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|[a-v0-9]{26}|\d+`)

// groupsOf groups dead letters by target, code and cause: the error with its numbers replaced. The
// largest group is first.
func groupsOf(letters []schemas.DeadInfo) []*deadGroup {
	groups := map[string]*deadGroup{}
	var all []*deadGroup
	for _, d := range letters {
		g := deadGroup{Target: d.Host, Code: d.ErrorCode, Cause: d.ErrorData, Consumer: d.Consumer}
		if g.Target == "" {
			g.Target = "service " + schemas.TenantService(d.Tenant, d.Service)
		}
		key := strings.Join([]string{g.Target, g.Code, g.Consumer, varying.ReplaceAllString(g.Cause, "#")}, "\x00")
		if groups[key] == nil {
			groups[key] = &g
			all = append(all, &g)
		}
		groups[key].add(&d)
	}
	slices.SortFunc(all, func(a, b *deadGroup) int {
		return cmp.Or(b.Count-a.Count, strings.Compare(a.Target+a.Code+a.Cause+a.Consumer, b.Target+b.Code+b.Cause+b.Consumer))
	})
	return all
}

func (g *deadGroup) add(d *schemas.DeadInfo) {
	g.Count++
	if len(g.Letters) < shownLetters {
		g.Letters = append(g.Letters, *d)
	} else {
		g.Others = append(g.Others, d.Sequence)
	}
}

// selectedLetters returns the sequences of the dead letters in a form.
func (q *request) selectedLetters() ([]uint64, error) {
	texts := q.PostForm["letter"]
	switch {
	case len(texts) == 0:
		return nil, schemas.Errorf(schemas.CodeBadRequest, "no dead letter is selected")
	case len(texts) > maxLetters:
		return nil, schemas.Errorf(schemas.CodeBadRequest, "%d dead letters are selected; the limit is %d", len(texts), maxLetters)
	}
	var all []uint64
	for _, text := range texts {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 {
			return nil, schemas.Errorf(schemas.CodeBadRequest, "%.40q is not the sequence of a dead letter", text)
		}
		all = append(all, n)
	}
	return all, nil
}

// replayDead replays the dead letters in a form, at a rate if it has one.
func replayDead(q *request) (view, error) {
	rate := q.text("rate")
	if _, err := strconv.ParseUint(rate, 10, 32); err == nil {
		rate += "/s"
	}
	fields := url.Values{"letter": q.PostForm["letter"]}
	if rate != "" {
		fields.Set("rate", rate)
	}
	return q.changeLetters(&job{path: "/dead/replay", done: "%d dead letters are replayed", sure: true, fields: fields}, schemas.BulkDeadRequest{Rate: rate}, q.ops.BulkReplay)
}

// discardDead removes the dead letters in a form for good.
func discardDead(q *request) (view, error) {
	return q.changeLetters(&job{
		path: "/dead/discard", ask: "Discard %s dead letters?", done: "%d dead letters are discarded", button: "Discard them", danger: true, fields: url.Values{"letter": q.PostForm["letter"]},
		lead: "They cannot be replayed any more. The records of their timers do not change. The log of the node records your name.",
	}, schemas.BulkDeadRequest{}, q.ops.BulkDiscard)
}

// changeLetters runs a job on the dead letters in a form.
func (q *request) changeLetters(j *job, b schemas.BulkDeadRequest, do func(context.Context, schemas.BulkDeadRequest, schemas.Caller) (schemas.BulkDeadReply, error)) (view, error) {
	var err error
	if b.Sequences, err = q.selectedLetters(); err != nil {
		return view{}, err
	}
	b.Limit, j.back = stepPage, "/dead"
	j.step = func(dry bool, cursor string) (jobStep, error) {
		b.DryRun, b.Cursor = dry, cursor
		r, err := do(q.Context(), b, q.caller())
		return jobStep{BulkCounts: r.BulkCounts, letters: r.Dead, cursor: r.Cursor, last: r.Last}, err
	}
	return q.runJob(j)
}

// rejectedPage is the page of adds that were rejected after they had been stored.
type rejectedPage struct {
	Rejected []schemas.RejectedInfo
	More     string
}

// listRejected is the page of rejected adds, newest first on each page.
func listRejected(q *request) (view, error) {
	reply, err := q.ops.RejectedList(q.Context(), schemas.RejectedListRequest{Limit: pageSize, Cursor: q.text("cursor")})
	for i := range reply.Rejected {
		r := &reply.Rejected[i]
		r.Error = q.id.ConcealText(r.Error)
		if !q.can.Payload {
			r.Data = ""
		}
	}
	slices.Reverse(reply.Rejected)
	return view{name: "rejected", title: "Rejections", data: rejectedPage{reply.Rejected, q.more(reply.Cursor)}}, err
}
