package schemas

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

// hash returns the first 128 bits of the SHA-256 of the event's attributes and data. A
// repeated add has the same hash in either content mode. The hash excludes time and the
// trace attributes, which may differ in each try, and the attributes that Belfry adds.
//
// Records store the hash, so the hashed fields and their order must never change:
// otherwise a repeated add would become a conflict.
func (p *parsed) hash() (h [16]byte) {
	var array [maxFiredAttributes]*attribute
	counted := array[:0]
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

// identifies reports whether the hash includes the attribute.
func (a *attribute) identifies() bool {
	if a.kind == kindNull {
		return false
	}
	switch a.name {
	case "time", "traceparent", "tracestate", AttrScheduled, AttrFired, AttrRun, AttrAttempt, AttrErrorCode, AttrErrorData, AttrMissed, AttrTrigger:
		return false
	case "datacontenttype":
		return a.text != contentJSON // the default of structured mode
	}
	return true
}
