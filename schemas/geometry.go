package schemas

import (
	"encoding/binary"
	"time"
)

// Geometry is how timers are laid out over shards and slots. It is fixed when
// the store is first made, recorded there, and the same for every node.
type Geometry struct {
	// Shards is the number of KV buckets, 1 to MaxShards.
	Shards int `json:"shards"`
	// SlotWidth is the time that one slot covers, 100 ms or more.
	SlotWidth time.Duration `json:"slot_width"`
	// WheelSize is the number of slots; a due time of a later revolution shares
	// a slot with one of this.
	WheelSize int64 `json:"wheel_size"`
}

// Limits and defaults of a Geometry.
const (
	MaxShards        = 256
	DefaultShards    = 4
	DefaultSlotWidth = time.Second
	// DefaultWheelSize makes one revolution of one-second slots 3.2 years.
	DefaultWheelSize = 100_000_000
	MinSlotWidth     = 100 * time.Millisecond
)

// DefaultGeometry is what a new store gets when nothing else is asked for.
func DefaultGeometry() Geometry {
	return Geometry{Shards: DefaultShards, SlotWidth: DefaultSlotWidth, WheelSize: DefaultWheelSize}
}

// Validate reports what is out of range.
func (g Geometry) Validate() error {
	switch {
	case g.Shards < 1 || g.Shards > MaxShards:
		return Errorf(CodeConfig, "shards is %d; it must be 1 to %d", g.Shards, MaxShards)
	case g.SlotWidth < MinSlotWidth || g.SlotWidth%time.Millisecond != 0:
		return Errorf(CodeConfig, "slot width is %s; it must be whole milliseconds, %s or more", g.SlotWidth, MinSlotWidth)
	case g.WheelSize < 16:
		return Errorf(CodeConfig, "wheel size is %d slots; it must be 16 or more", g.WheelSize)
	}
	return nil
}

// Shard is the shard that keeps the timer: a hash of its id, so that one
// instant's timers spread over all of them.
func (g Geometry) Shard(id TimerID) int {
	return int(binary.BigEndian.Uint64(id[:8]) % uint64(g.Shards))
}

// Tick is the absolute number of the slot-wide interval that holds dueMs (Unix
// milliseconds, not negative): it grows with time and never wraps.
func (g Geometry) Tick(dueMs int64) int64 { return dueMs / g.SlotWidth.Milliseconds() }

// Slot is the place of a tick on the wheel, 0 to WheelSize-1.
func (g Geometry) Slot(tick int64) int64 { return tick % g.WheelSize }

// TickStart is the first millisecond of the tick.
func (g Geometry) TickStart(tick int64) int64 { return tick * g.SlotWidth.Milliseconds() }
