package store

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// A Letter is a dead letter or a rejected add: a message that must not get lost because of
// its own size. Letters publishes it in the first of three forms that JetStream stores.
//
//	unchanged   the event's headers and data, and Belfry's headers
//	enclosed    Belfry's headers; the data is the message as NATS sends it: its
//	            header block, whose length is in Belfry-Enclosed, and then its data
//	in parts    the enclosed data, cut; the first part is stored last and lists the
//	            stream sequences of the others in Belfry-Parts
//
// So a letter may exceed the limits of a message: enclosed, the limit of headers, and in
// parts, the limit of bytes, which an operator may have lowered since the add. Nothing is
// ever truncated. OpenLetter restores the unchanged form.
type Letter struct {
	Subject  string
	Sequence uint64    // in the stream
	Stored   time.Time // by the stream leader's clock
	Header   map[string][]string
	Data     []byte
}

// Get returns the first value of a header, or "".
func (l *Letter) Get(name string) string { return firstValue(l.Header, name) }

func firstValue(header map[string][]string, name string) string {
	if v := header[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func letterOf(m *jet.Msg) *Letter {
	return &Letter{Subject: m.Subject, Sequence: m.Sequence, Stored: m.Time, Header: m.Header, Data: m.Data}
}

// letterOf is letterOf, in the moved time of a development store.
func (l *Letters) letterOf(m *jet.Msg) *Letter {
	letter := letterOf(m)
	letter.Stored = at(l.moved, m.Time)
	return letter
}

const (
	// leastPart is the smallest size of a part in bytes, which bounds the number of parts.
	// Every server that Belfry runs with stores it; see leastMessage.
	leastPart = 16 << 10
	// partHeaders is the space in bytes for the headers of a part, including the sequences
	// of 500 other parts.
	partHeaders = 16 << 10
)

// PublishLetter publishes a letter in the first form that fits. m.MsgID must be set: every
// form has this id, so the call may be repeated. Errors: schemas.ErrUnavailable,
// schemas.ErrStoreFull.
func (l *Letters) PublishLetter(ctx context.Context, m Msg) (duplicate bool, err error) {
	return PublishLetter(ctx, l.events.Publish, l.events.MaxMessage(), m)
}

// PublishLetter is Letters.PublishLetter for other stores, such as a simulated one, that
// store messages of at most maxMessage bytes.
func PublishLetter(ctx context.Context, publish func(context.Context, Msg) (uint64, bool, error), maxMessage int, m Msg) (duplicate bool, err error) {
	// The server may store less than maxMessage: after a refusal, try the next form.
	if fits(m, maxMessage) {
		if _, duplicate, err = publish(ctx, m); !Permanent(err) {
			return duplicate, err
		}
	}
	e := enclose(m)
	if fits(e, maxMessage) {
		if _, duplicate, err = publish(ctx, e); !Permanent(err) {
			return duplicate, err
		}
	}
	for size := maxMessage - partHeaders; ; size /= 2 {
		size = max(size, leastPart)
		if duplicate, err = publishParts(ctx, publish, e, size); !Permanent(err) {
			return duplicate, err
		}
		if size == leastPart {
			// The limit is below leastMessage, so no timer could be stored either.
			return false, schemas.Errorf(schemas.CodeStoreFull, "publish %s: a part of %d bytes is refused (%w): raise max_payload and the stream's max_msg_size", m.Subject, size, err)
		}
	}
}

// fits reports whether a message is within the known limits.
func fits(m Msg, maxMessage int) bool {
	n := schemas.HeaderBytes(m.Header)
	return n <= schemas.MaxHeaderBytes && n+len(m.Data) <= maxMessage
}

// publishParts publishes an enclosed letter in parts of at most size bytes of data.
func publishParts(ctx context.Context, publish func(context.Context, Msg) (uint64, bool, error), e Msg, size int) (duplicate bool, err error) {
	var seqs []string
	for i, chunk := range slices.Collect(slices.Chunk(e.Data, size)) {
		if i == 0 {
			continue
		}
		// The id includes the size, because a repetition may cut differently.
		part := Msg{Subject: e.Subject, MsgID: e.MsgID + ".part." + strconv.Itoa(i) + "." + strconv.Itoa(size), Data: chunk}
		part.Header = jet.Header{schemas.HeaderPart: {strconv.Itoa(i)}}
		seq, _, err := publish(ctx, part)
		if err != nil {
			return false, err
		}
		seqs = append(seqs, strconv.FormatUint(seq, 10))
	}
	first := Msg{Subject: e.Subject, MsgID: e.MsgID, Header: jet.Header{}, Data: e.Data[:min(len(e.Data), size)]}
	for name, v := range e.Header {
		first.Header[name] = v
	}
	first.Header[schemas.HeaderParts] = []string{strings.Join(seqs, ",")}
	_, duplicate, err = publish(ctx, first)
	return duplicate, err
}

// enclose moves all headers of a message into its data, except Belfry's.
func enclose(m Msg) Msg {
	names := make([]string, 0, len(m.Header))
	e := Msg{Subject: m.Subject, MsgID: m.MsgID, Header: jet.Header{}}
	for name, v := range m.Header {
		switch {
		case strings.HasPrefix(name, schemas.HeaderPrefix):
			e.Header[name] = v
		case !strings.HasPrefix(strings.ToLower(name), "nats-"):
			names = append(names, name)
		}
	}
	slices.Sort(names)
	e.Data = make([]byte, 0, schemas.HeaderBytes(m.Header)+len(m.Data))
	e.Data = append(e.Data, headerBegin...)
	for _, name := range names {
		for _, v := range m.Header[name] {
			e.Data = append(append(e.Data, name...), ": "...)
			e.Data = append(append(e.Data, lineBreaks.Replace(v)...), "\r\n"...)
		}
	}
	e.Data = append(e.Data, "\r\n"...)
	e.Header[schemas.HeaderEnclosed] = []string{strconv.Itoa(len(e.Data))}
	e.Data = append(e.Data, m.Data...)
	return e
}

const headerBegin = "NATS/1.0\r\n"

var lineBreaks = strings.NewReplacer("\r", " ", "\n", " ")

// IsLetterPart reports whether a message is a part of a letter, but not the first part.
func IsLetterPart(m *Letter) bool { return m.Get(schemas.HeaderPart) != "" }

// LetterParts returns the sequences of a letter's parts after the first, in order. Error:
// schemas.CodeUnknownFormat.
func LetterParts(m *Letter) ([]uint64, error) {
	list := m.Get(schemas.HeaderParts)
	if list == "" {
		return nil, nil
	}
	var seqs []uint64
	for text := range strings.SplitSeq(list, ",") {
		seq, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, damagedLetter(m, "header %s %.80q is not a list of sequences", schemas.HeaderParts, list)
		}
		seqs = append(seqs, seq)
	}
	return seqs, nil
}

func damagedLetter(m *Letter, format string, args ...any) error {
	e := schemas.Errorf(schemas.CodeUnknownFormat, format, args...)
	e.Msg = "letter " + strconv.FormatUint(m.Sequence, 10) + ": " + e.Msg
	return e
}

// OpenLetter returns a letter as it was published, whatever its stored form; get reads the
// other parts. Errors: those of get, schemas.CodeUnknownFormat.
func OpenLetter(m *Letter, get func(seq uint64) (*Letter, error)) (*Letter, error) {
	length := m.Get(schemas.HeaderEnclosed)
	if length == "" {
		return m, nil
	}
	seqs, err := LetterParts(m)
	if err != nil {
		return nil, err
	}
	data := m.Data
	for _, seq := range seqs {
		part, err := get(seq)
		if err != nil {
			return nil, err
		}
		data = append(slices.Clip(data), part.Data...)
	}
	n, err := strconv.Atoi(length)
	if err != nil || n < len(headerBegin) || n > len(data) {
		return nil, damagedLetter(m, "header %s %.80q does not fit %d bytes of data", schemas.HeaderEnclosed, length, len(data))
	}
	opened := *m
	opened.Data, opened.Header = data[n:], jet.Header{}
	lines, ok := bytes.CutPrefix(data[:n], []byte(headerBegin))
	if !ok {
		return nil, damagedLetter(m, "its data does not begin with %q", headerBegin)
	}
	for line := range bytes.SplitSeq(lines, []byte("\r\n")) {
		if name, v, ok := strings.Cut(string(line), ": "); ok {
			opened.Header[name] = append(opened.Header[name], v)
		}
	}
	for name, v := range m.Header {
		if name != schemas.HeaderEnclosed && name != schemas.HeaderParts {
			opened.Header[name] = v
		}
	}
	return &opened, nil
}

// open is OpenLetter for a message of TIMERS_DEAD or TIMERS_REJECTED. If the letter is
// damaged, or a part is missing, it returns the stored form, in which readers find no event.
func (l *Letters) open(ctx context.Context, stream string, m *Letter) (*Letter, error) {
	opened, err := OpenLetter(m, func(seq uint64) (*Letter, error) {
		part, err := l.jet.At(ctx, stream, seq)
		if err != nil {
			return nil, err
		}
		return letterOf(part), nil
	})
	switch schemas.CodeOf(err) {
	case schemas.CodeNotFound, schemas.CodeUnknownFormat:
		return m, nil
	}
	return opened, err
}
