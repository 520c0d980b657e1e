package schemas

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

// hash is over all that makes the timer this one: a repeated add has the same
// hash in either mode. time and the trace may be new with each try, and what
// Belfry adds on firing is not the user's. Records keep it, so what is hashed, and
// in what order, is part of their format: under another hash a repeated add would
// be a conflict.
func (p *parsed) hash() (h [16]byte) {
	var room [maxFiredAttributes]*attribute
	counted := room[:0]
	for i := range p.attrs {
		if a := &p.attrs[i]; a.identifies() {
			counted = append(counted, a)
		}
	}
	slices.SortFunc(counted, func(a, b *attribute) int { return strings.Compare(a.name, b.name) })
	var start [1024]byte
	buf := start[:0]
	for _, a := range counted {
		buf = appendString(appendString(buf, a.name), a.text)
	}
	buf = binary.AppendUvarint(buf, uint64(len(counted)))
	if len(buf)+len(p.data) <= len(start) {
		sum := sha256.Sum256(append(buf, p.data...))
		return [16]byte(sum[:16])
	}
	d := sha256.New()
	d.Write(buf)
	d.Write(p.data)
	return [16]byte(d.Sum(buf[:0])[:16])
}

func (a *attribute) identifies() bool {
	if a.kind == kindNull {
		return false
	}
	switch a.name {
	case "time", "traceparent", "tracestate", AttrScheduled, AttrFired, AttrRun, AttrAttempt, AttrErrorCode, AttrErrorData:
		return false
	case "datacontenttype":
		return a.text != contentJSON // the default of structured mode
	}
	return true
}
