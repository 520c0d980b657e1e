package schemas

import (
	"encoding/binary"
	"time"
)

// Geometry defines the layout of timers over shards and slots. The first node stores it in
// the clock bucket. It never changes afterwards and is the same for all nodes.
type Geometry struct {
	// Shards is the number of KV buckets, 1 to MaxShards.
	Shards int `json:"shards"`
	// SlotWidth is the length of a tick, the time that one slot covers: whole milliseconds,
	// at least MinSlotWidth.
	SlotWidth time.Duration `json:"slot_width"`
	// WheelSize is the number of slots, at least 16. Due times that differ by a multiple
	// of WheelSize ticks share a slot.
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

// DefaultGeometry returns the geometry of a new store without settings.
func DefaultGeometry() Geometry {
	return Geometry{Shards: DefaultShards, SlotWidth: DefaultSlotWidth, WheelSize: DefaultWheelSize}
}

// Validate returns an error of CodeConfig for a value out of range.
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

// Shard returns the shard that stores the timer. It depends only on the timer id, so
// timers that are due at the same time spread over all shards.
func (g Geometry) Shard(id TimerID) int {
	return int(binary.BigEndian.Uint64(id[:8]) % uint64(g.Shards))
}

// Tick returns the number of the tick that contains dueMs (Unix milliseconds, not
// negative). Ticks count from 1970 and never wrap.
func (g Geometry) Tick(dueMs int64) int64 { return dueMs / g.SlotWidth.Milliseconds() }

// Slot returns the position of a tick on the wheel, 0 to WheelSize-1.
func (g Geometry) Slot(tick int64) int64 { return tick % g.WheelSize }

// TickStart returns the first millisecond of a tick, in Unix milliseconds.
func (g Geometry) TickStart(tick int64) int64 { return tick * g.SlotWidth.Milliseconds() }
