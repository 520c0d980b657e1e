package store

import (
	"encoding/binary"
	"testing"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// TestAuditOfFarEntries: a far entry indexes a timer in its own tick only, and only if its period has a mark.
func TestAuditOfFarEntries(t *testing.T) {
	t.Parallel()
	shards := newShards(nil, schemas.DefaultGeometry())
	a := newAudit(nil, newDecoder(shards, NewestLevel, zerolog.Nop()), 0)
	id, period := schemas.TimerID{1}, int64(500_000)
	tick := period*shards.farTicks() + 7
	a.farEntry(&jet.Msg{Subject: spreadKey(shards.subjects[0].far, period, sharedKey()), Data: binary.BigEndian.AppendUint16(id[:], 7)})
	if a.indexed(id, audited{tick: tick}) {
		t.Error("a far entry without a mark indexes its timer")
	}
	a.farEntry(&jet.Msg{Subject: shards.farMark(0, period+1)})
	if a.indexed(id, audited{tick: tick}) {
		t.Error("the mark of another period counts")
	}
	a.farEntry(&jet.Msg{Subject: shards.farMark(0, period)})
	if !a.indexed(id, audited{tick: tick}) || a.indexed(id, audited{tick: tick + 1}) || a.indexed(schemas.TimerID{2}, audited{tick: tick}) {
		t.Error("a far entry with a mark indexes its timer in its tick, and nothing else")
	}
	a.farEntry(&jet.Msg{Subject: spreadKey(shards.subjects[0].far, period, sharedKey()), Data: []byte("xyz")})
	if got := a.dec.undecodable.Load(); got != 1 {
		t.Errorf("%d entries cannot be decoded", got)
	}
}
