package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"os"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/schemas"
)

// dueFlags holds the flags for the due time; a command needs exactly one of them.
type dueFlags struct{ in, at string }

func (f *dueFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.in, "in", "", "due after this duration: 2s, 1h30m, 3d, 2w, PT10S")
	fs.StringVar(&f.at, "at", "", "due at this time: 2026-12-24T18:00:00Z, or in the local zone 2026-12-24 18:00, 18:00, \"tomorrow 9:00\"")
}

// read validates the flags before any request, and rewrites them as the attributes timerafter and
// timerat take them. If --at is not an RFC 3339 time, read prints the time to stderr.
func (f *dueFlags) read(c *cli) error {
	switch {
	case (f.in == "") == (f.at == ""):
		return usagef("give either --in or --at")
	case f.in != "":
		if _, err := cmdline.ParseDuration(f.in); err != nil {
			return usagef("--in %q: %v", f.in, err)
		}
		f.in = attributeDuration(f.in)
	default:
		t, interpreted, err := cmdline.ParseTime(f.at, time.Now())
		if err != nil {
			return usagef("--at %q: %v", f.at, err)
		}
		if interpreted {
			fmt.Fprintf(c.err, "belfry: --at %q is %s\n", f.at, t.Format(time.RFC3339)) //nolint:errcheck // stderr is the last resort
			f.at = schemas.FormatTime(t.UnixMilli())
		}
	}
	return nil
}

// attributeDuration returns a duration as the attributes take it: days and weeks, which they do not
// have, as hours. A text that is no duration stays as it is, so that Belfry says what is wrong with it.
func attributeDuration(text string) string {
	d, err := cmdline.ParseDuration(text)
	if _, known := schemas.ParseDuration(text); known == nil || err != nil {
		return text
	}
	return d.String()
}

// attributeBackoff is attributeDuration for one delay, or two with ".." between them.
func attributeBackoff(text string) string {
	first, to, ranged := strings.Cut(text, "..")
	if !ranged {
		return attributeDuration(text)
	}
	return attributeDuration(first) + ".." + attributeDuration(to)
}

type addFlags struct {
	due                                dueFlags
	recurrence                         recurrenceFlags
	id, source, kind, data, dataType   string
	service, callback, group           string
	flow, key                          string
	maxAttempts, backoff, callbackTime string
	worker                             bool
	extensions                         []string
}

// add adds the flags of an event, without those of its due time.
func (f *addFlags) add(fs *pflag.FlagSet) {
	f.recurrence.add(fs)
	fs.StringVar(&f.service, "svc", "", "service: the event fires on timers.fired.<svc> (default \"default\")")
	fs.StringVar(&f.callback, "callback", "", "URL or subject to call when due: https://…, http://… or nats:<subject>")
	fs.BoolVar(&f.worker, "worker", false, "call the service's Go workers (client.Work); short for --callback nats:timers.work.<svc>")
	fs.StringVar(&f.id, "id", "", "the CloudEvent's id (default: a random one)")
	fs.StringVar(&f.source, "source", defaultSource, "the CloudEvent's source")
	fs.StringVar(&f.kind, "type", "belfry.timer", "the CloudEvent's type")
	fs.StringVar(&f.data, "data", "", "the CloudEvent's data: JSON or text, @FILE, or @- for stdin")
	fs.StringVar(&f.dataType, "content-type", "", "content type of the data (default: application/json if it is JSON, else text/plain)")
	fs.StringVar(&f.group, "group", "", "a label to filter lists by")
	fs.StringVar(&f.key, "key", "", "ordering key: the callbacks of one key and one service are called one at a time, in due order")
	fs.StringVar(&f.flow, "flow", "", "flow key, whose limits apply to the callback (default: the callback's host, or service:<svc>)")
	fs.StringVar(&f.maxAttempts, "max-attempts", "", fmt.Sprintf("maximum number of callback attempts; then the timer becomes a dead letter (default %d)", schemas.DefaultMaxAttempts))
	fs.StringVar(&f.backoff, "backoff", "", fmt.Sprintf("first delay between attempts, doubled each time, and optionally the longest: 200ms, 1s..10m (default %s..%s)", schemas.FormatDuration(schemas.DefaultBackoffFirst), schemas.FormatDuration(schemas.DefaultBackoffTo)))
	fs.StringVar(&f.callbackTime, "callback-timeout", "", fmt.Sprintf("time limit of one callback attempt (default %s)", schemas.FormatDuration(schemas.DefaultTimeout)))
	fs.StringArrayVar(&f.extensions, "ext", nil, "another CloudEvents attribute, NAME=VALUE (may be repeated)")
}

func (c *cli) addCommand() *cobra.Command {
	f := &addFlags{}
	cmd := &cobra.Command{
		Use:   "add --in DURATION | --at TIME | --cron EXPR | --every PERIOD",
		Short: "Add a timer or a schedule",
		Long: `Add a timer: a CloudEvent that fires when it is due. With --cron or --every it is a
schedule, which fires again and again; "belfry preview" shows when a schedule would run.

If the same event (source, id, attributes and data) was added before, it is a duplicate,
which is not an error. Belfry rejects a different event with the same source and id.`,
		Example: `  belfry add --in 2s --svc orders --data '{"order":17}'
  belfry add --at 2026-12-24T18:00:00Z --id order-17 --source /shop --callback https://shop.example/due
  belfry add --in 10m --svc orders --worker --data @order.json
  belfry add --in 10m --callback nats:callbacks.orders --data @order.json
  belfry add --cron '30 2 * * *' --tz Europe/Berlin --svc reports --id nightly --source /reports
  belfry add --every 15m --svc sync --worker --overlap queue --limit 96`,
		Args: exactly(0),
	}
	f.due.add(cmd.Flags())
	f.add(cmd.Flags())
	var e event.Event
	var schedule *calendar.Schedule
	check := func([]string) (err error) {
		if e, err = c.makeEvent(f); err == nil && f.recurrence.recurs() {
			schedule, err = checkSchedule(e)
		}
		return err
	}
	return c.talking(cmd, check, func(ctx context.Context, s session) error {
		ctx, cancel := s.call(ctx)
		defer cancel()
		r, err := s.Add(ctx, e)
		if err != nil {
			return namingFlag(err)
		}
		due := schemas.FormatTime(r.Due.UnixMilli())
		description := ""
		if schedule != nil {
			description = f.recurrence.describe(ctx, s, r.Timer, schedule)
			for _, w := range schedule.Warnings() {
				fmt.Fprintf(c.err, "belfry: warning: %s\n", printable(w)) //nolint:errcheck // stderr is the last resort
			}
		}
		if c.json() {
			line := map[string]any{"timer": r.Timer, "id": e.ID(), "source": e.Source(), "due": due, "duplicate": r.Duplicate, "state": r.State}
			if r.Remark != "" {
				line["remark"] = r.Remark
			}
			if description != "" {
				line["description"] = description
			}
			return c.printJSON(line)
		}
		note := ""
		if r.Duplicate {
			note = "yes: added before (state: " + r.State.String() + ")"
		}
		return c.printText("timer", r.Timer.String(), "id", e.ID(), "source", e.Source(), "schedule", description, "due", c.zone.show(r.Due), "remark", r.Remark, "duplicate", note)
	})
}

// makeEvent makes the CloudEvent that the flags describe, with Belfry's attributes.
func (c *cli) makeEvent(f *addFlags) (event.Event, error) {
	e := event.New()
	switch once := f.due.in != "" || f.due.at != ""; {
	case !once && !f.recurrence.recurs(), once && f.recurrence.recurs(), f.recurrence.cron != "" && f.recurrence.every != "":
		return e, usagef("give one of --in, --at, --cron and --every")
	case once:
		if err := f.due.read(c); err != nil {
			return e, err
		}
	}
	if err := f.recurrence.apply(&e); err != nil {
		return e, err
	}
	if f.worker {
		if f.callback != "" {
			return e, usagef("give either --worker or --callback")
		}
		if f.service == "" {
			f.service = schemas.DefaultService
		}
		f.callback = schemas.WorkCallback(f.service)
	}
	if f.id == "" {
		f.id = uuid.NewString()
	}
	e.SetID(f.id)
	e.SetSource(f.source)
	// The library for events escapes and trims. The timer would then have another identity than the user gave.
	switch {
	case e.Source() != f.source && e.Source() != "":
		return e, usagef("the source %q is not a URI reference: write it as %q", f.source, e.Source())
	case e.ID() != f.id && e.ID() != "":
		return e, usagef("the id %q begins or ends with white space: write it as %q", f.id, e.ID())
	}
	e.SetType(f.kind)
	e.SetTime(time.Now())
	for name, value := range map[string]string{
		schemas.AttrAfter: f.due.in, schemas.AttrAt: f.due.at, schemas.AttrService: f.service, schemas.AttrCallback: f.callback, schemas.AttrGroup: f.group, schemas.AttrFlow: f.flow, schemas.AttrKey: f.key,
		schemas.AttrMaxAttempts: f.maxAttempts, schemas.AttrBackoff: attributeBackoff(f.backoff), schemas.AttrTimeout: attributeDuration(f.callbackTime),
	} {
		if value != "" {
			e.SetExtension(name, value)
		}
	}
	for _, x := range f.extensions {
		name, value, ok := strings.Cut(x, "=")
		switch {
		case !ok || name == "":
			return e, usagef("--ext %q is not NAME=VALUE", x)
		case strings.Trim(name, attributeLetters) != "":
			return e, usagef("--ext %q: the name of an attribute has only lower-case letters and digits", x)
		}
		e.SetExtension(name, value)
	}
	data, err := c.readData("--data", f.data)
	if err != nil {
		return e, err
	}
	if len(data) > 0 {
		if err := setData(&e, data, f.dataType); err != nil {
			return e, usagef("--data: %v", err)
		}
	}
	if err := e.Validate(); err != nil {
		return e, usagef("the timer is not a valid CloudEvent: %v", err)
	}
	return e, nil
}

// attributeLetters are the characters of the names of attributes in CloudEvents.
const attributeLetters = "abcdefghijklmnopqrstuvwxyz0123456789"

// namingFlag returns an error about an attribute with the flag of add or update that sets it.
func namingFlag(err error) error {
	attribute, _, _ := strings.Cut(err.Error(), " ")
	flag := attributeKeys[attribute]
	switch attribute {
	case schemas.AttrAfter:
		flag = "in"
	case schemas.AttrAt:
		flag = "at"
	}
	if flag == "" {
		return err
	}
	return fmt.Errorf("--%s: %w", flag, err)
}

// maxData bounds the bytes of a value or file of a flag. The server's limit for --data is lower.
const maxData = 64 << 20

// readData returns the value of a flag, or the content of the file that it names: @FILE, or @- for
// standard input.
func (c *cli) readData(flag, arg string) ([]byte, error) {
	name, isFile := strings.CutPrefix(arg, "@")
	if !isFile {
		return []byte(arg), nil
	}
	r := c.in
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, usagef("%s: %v", flag, err)
		}
		defer file.Close() //nolint:errcheck // only read
		r = file
	}
	b, err := io.ReadAll(io.LimitReader(r, maxData+1))
	switch {
	case err != nil:
		return nil, usagef("%s: %v", flag, err)
	case len(b) > maxData:
		return nil, usagef("%s has more than %d bytes, the limit", flag, maxData)
	}
	return b, nil
}

func setData(e *event.Event, data []byte, contentType string) error {
	isJSON := json.Valid(data)
	if contentType == "" {
		contentType = event.TextPlain
		if isJSON {
			contentType = event.ApplicationJSON
		}
	}
	switch {
	case !isJSON && isJSONType(contentType):
		return fmt.Errorf("the content type is %s, and the data is not JSON: %s", contentType, jsonProblem(data))
	case contentType == event.ApplicationJSON:
		return e.SetData(contentType, json.RawMessage(bytes.TrimSpace(data)))
	case strings.HasPrefix(contentType, "text/"):
		return e.SetData(contentType, string(data))
	}
	return e.SetData(contentType, data)
}

// isJSONType reports whether a content type is that of JSON: application/json, or a type with the
// suffix +json (RFC 6839, section 3.1).
func isJSONType(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && (t == event.ApplicationJSON || t == "text/json" || strings.HasSuffix(t, "+json"))
}

// jsonProblem returns the reason why data is not JSON.
func jsonProblem(data []byte) string {
	err := json.Unmarshal(data, new(any))
	if at, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Sprintf("%v at byte %d", err, at.Offset)
	}
	return fmt.Sprint(err)
}
