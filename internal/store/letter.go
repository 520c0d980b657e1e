package store

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// A letter is a message that must not get lost because of its own size: a dead
// letter or a rejected add. It is published in the first form that JetStream takes.
//
//	as it is    the event's headers and data, and Belfry's headers
//	enclosed    Belfry's headers; the data is the message as NATS sends it: its
//	            header block, whose length is in Belfry-Enclosed, and then its data
//	in parts    the enclosed data, cut; the first part comes last and lists the
//	            stream sequences of the others in Belfry-Parts
//
// Enclosing lifts the limit of headers, parts that of a message, which an operator
// may have lowered since the event was accepted. Nothing is ever truncated.
// OpenLetter takes any form back to the first.
const (
	// leastPart bounds how many parts a letter has. Every server that Belfry runs
	// with takes it; see leastMessage.
	leastPart = 16 << 10
	// partHeaders is room for the headers of a part, the sequences of 500 other
	// parts among them.
	partHeaders = 16 << 10
)

// PublishLetter publishes a letter in the first form that fits. The message id must
// be set: it is that of the letter in any form. The call may be repeated.
// Errors: schemas.ErrUnavailable, schemas.ErrStoreFull.
func (s *Store) PublishLetter(ctx context.Context, m Msg) (duplicate bool, err error) {
	return PublishLetter(ctx, s.Publish, s.MaxMessage(), m)
}

// PublishLetter is Store.PublishLetter with any other way to publish, for a server
// that takes messages of maxMessage bytes.
func PublishLetter(ctx context.Context, publish func(context.Context, Msg) (uint64, bool, error), maxMessage int, m Msg) (duplicate bool, err error) {
	// What cannot fit is not tried. What does not fit although it should is.
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
			// Not the letter's fault: no timer could be stored there.
			return false, schemas.Errorf(schemas.CodeStoreFull, "publish %s: a part of %d bytes is refused (%w): raise max_payload and the stream's max_msg_size", m.Subject, size, err)
		}
	}
}

// fits reports whether a message is within the limits that are known here.
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
		// The size is in the id, since a repetition may cut differently.
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

// enclose moves the headers of a message into its data, all but Belfry's.
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

// IsLetterPart reports whether a message is a part of a letter other than the first,
// which stands for the letter.
func IsLetterPart(m *jet.Msg) bool { return m.Header.Get(schemas.HeaderPart) != "" }

// LetterParts are the sequences of a letter's other parts, in order.
func LetterParts(m *jet.Msg) ([]uint64, error) {
	list := m.Header.Get(schemas.HeaderParts)
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

func damagedLetter(m *jet.Msg, format string, args ...any) error {
	e := schemas.Errorf(schemas.CodeUnknownFormat, format, args...)
	e.Msg = "letter " + strconv.FormatUint(m.Sequence, 10) + ": " + e.Msg
	return e
}

// OpenLetter returns the message that a letter was made of, as it was before
// PublishLetter; get reads the letter's other parts. A letter in the first form is
// returned as it is. Errors: what get returns, and CodeUnknownFormat.
func OpenLetter(m *jet.Msg, get func(seq uint64) (*jet.Msg, error)) (*jet.Msg, error) {
	length := m.Header.Get(schemas.HeaderEnclosed)
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

// open is OpenLetter for a message of TIMERS_DEAD or TIMERS_REJECTED. One that cannot
// be opened is returned as it is, for its readers to say so.
func (s *Store) open(ctx context.Context, stream string, m *jet.Msg) (*jet.Msg, error) {
	opened, err := OpenLetter(m, func(seq uint64) (*jet.Msg, error) { return s.jet.At(ctx, stream, seq) })
	switch schemas.CodeOf(err) {
	case schemas.CodeNotFound, schemas.CodeUnknownFormat:
		return m, nil
	}
	return opened, err
}
