package schemas

import (
	"encoding/binary"
	"net/url"
	"strings"
	"time"
)

// AttrFlow names the flow key of an add. The limits of the key apply to the callback. See FlowKey.
const AttrFlow = "timerflow"

// MaxFlowKey bounds a flow key that an event names, in bytes.
const MaxFlowKey = 128

// MaxFlowPattern bounds a pattern of flow keys, and the flow key of a tenant, in bytes.
const MaxFlowPattern = MaxFlowKey + MaxTenantLength + len(tenantSeparator)

// ServiceFlowPrefix and a service make the flow key of the callbacks over NATS of that
// service, unless timerflow names another.
const ServiceFlowPrefix = "service:"

// GroupFlowPrefix and the group of a timer (AttrGroup) make the flow key whose pause holds the
// callbacks of that group. A pause of ServiceFlowPrefix with a service likewise holds all
// callbacks of the service, whatever their flow keys. Services and groups of a tenant are named as in
// TenantService: service:acme=orders, group:acme=import.
const GroupFlowPrefix = "group:"

// AddsFlowPrefix followed by a service is the key of the limit of that service's adds. The service of
// a tenant is named as in TenantService. The prefix followed by a tenant and TenantEnd is the key of
// the limit of all adds of the tenant. Such limits apply only to adds, and no other limits apply to
// adds.
const AddsFlowPrefix = "adds:"

// TenantEnd ends the key of the limit of all adds of a tenant.
const TenantEnd = tenantSeparator

// LimitsAdds reports whether a limit of a flow key or pattern applies to adds, not to callbacks.
func LimitsAdds(pattern string) bool { return strings.HasPrefix(pattern, AddsFlowPrefix) }

// NamesTenant reports whether a flow key or pattern of callbacks is one of a tenant.
func NamesTenant(pattern string) bool {
	return !LimitsAdds(pattern) && strings.Contains(pattern, tenantSeparator)
}

// FlowKey returns the flow key of a callback. With flow, the value of AttrFlow, it is flow, or
// <tenant>=<flow> for a tenant. Without flow it is the host of an HTTP callback, in lower case and with
// its port unless that is the default of its scheme. For all other callbacks it is ServiceFlowPrefix
// with the service. target is the callback with the base URL of the service applied; see
// CallbackRules.Resolve.
func FlowKey(flow, target, service string) string {
	if flow != "" {
		return TenantService(TenantOf(service), flow)
	}
	if strings.HasPrefix(target, NATSScheme) {
		return ServiceFlowPrefix + service
	}
	u, err := url.Parse(target)
	if err != nil || u.Hostname() == "" {
		return ServiceFlowPrefix + service
	}
	host := strings.Map(func(c rune) rune {
		if c > 0x7f || !flowByte(byte(c)) {
			return '_' // an address has no such character, except the zone of an IPv6 address
		}
		return c
	}, strings.ToLower(u.Hostname()))
	port := u.Port()
	if port == "" || port == "443" && u.Scheme == "https" || port == "80" && u.Scheme == "http" {
		return host
	}
	return host + ":" + port
}

// flowByte reports whether a flow key may have the byte.
func flowByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return strings.IndexByte("-_.:@/", c) >= 0
}

// CheckFlowKey returns an error of CodeInvalidAttribute for a text that is not a flow key: 1 to
// MaxFlowKey letters, digits and - _ . : @ /.
func CheckFlowKey(key string) error {
	if ok := validFlow(key, MaxFlowKey, ""); !ok {
		return Errorf(CodeInvalidAttribute, "a flow key must have 1 to %d letters, digits or any of - _ . : @ /", MaxFlowKey)
	}
	return nil
}

// CheckFlowPattern returns an error of CodeBadRequest for a text that is neither a flow key nor
// a pattern: a flow key in which * stands for any run of characters. It may have the = after the name of
// a tenant.
func CheckFlowPattern(pattern string) error {
	if !validFlow(pattern, MaxFlowPattern, "*"+tenantSeparator) {
		return Errorf(CodeBadRequest, "flow key %.170q must have 1 to %d letters, digits or any of - _ . : @ /, = after the name of a tenant, and * for any run of characters", pattern, MaxFlowPattern)
	}
	return nil
}

func validFlow(s string, most int, also string) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !flowByte(s[i]) && strings.IndexByte(also, s[i]) < 0 {
			return false
		}
	}
	return true
}

// Deferral is the state in a record of an event that waits, or has waited, because of the limit of
// its flow key or for its turn (timerkey). A deferral uses no attempt.
type Deferral struct {
	// Count is the number of times that the event went back into the wheel. It is part of the
	// message id of the event that the scheduler then publishes, and of its claim; so it stays
	// after the call, until the final state.
	Count uint32
	// SlotMs is the time that the event has reserved, in Unix milliseconds; 0 once it was called. For
	// an event that waits for its turn, it is the latest time at which the event asks again.
	SlotMs int64
	// Generation is the revision of the limit under which SlotMs was reserved.
	Generation uint64
	// Flow is the flow key; empty while the event waits for its turn.
	Flow string
}

// layoutDeferral is the first byte of an encoded Deferral.
const layoutDeferral = 1

func (f *Deferral) append(dst []byte) []byte {
	dst = binary.AppendUvarint(append(dst, layoutDeferral), uint64(f.Count))
	dst = binary.AppendVarint(dst, f.SlotMs)
	dst = binary.AppendUvarint(dst, f.Generation)
	return appendString(dst, f.Flow)
}

// readDeferral decodes the value of extension extDeferral. It returns nil if the value has
// another layout or is malformed.
func readDeferral(value []byte) *Deferral {
	d := decoder{b: value}
	if d.byte() != layoutDeferral {
		return nil
	}
	f := Deferral{Count: d.uint32(), SlotMs: d.varint(), Generation: d.uvarint()}
	f.Flow = string(d.bytes())
	if d.bad || len(d.b) > 0 {
		return nil
	}
	return &f
}

// Deferrals returns Deferral.Count, 0 without a Deferral.
func (r *RunState) Deferrals() uint32 {
	if r.Deferral == nil {
		return 0
	}
	return r.Deferral.Count
}

// Deferred reports whether the run waits for its slot: its next step is not a retry, but the
// call that its flow key did not permit yet.
func (r *RunState) Deferred() bool {
	return r.State == StateRetrying && r.Deferral != nil && r.Deferral.SlotMs != 0 && r.Deferral.Flow != ""
}

// AwaitsTurn reports whether the run waits in the wheel for the events of its ordering key that
// come before it.
func (r *RunState) AwaitsTurn() bool {
	return r.State == StateRetrying && r.Queued && r.Deferral != nil && r.Deferral.SlotMs != 0 && r.Deferral.Flow == ""
}

// Defer makes a record whose call is not permitted yet wait for its slot: in the wheel if
// queued is true, otherwise in the consumer of its event. It does not change the deferral of
// other copies of the record.
func (r *RunState) Defer(key string, generation uint64, slotMs int64, queued bool) {
	d := Deferral{Count: r.Deferrals(), SlotMs: slotMs, Generation: generation, Flow: key}
	r.State, r.Queued, r.NextMs = StateRetrying, queued, slotMs
	if queued {
		d.Count++
		r.DueMs = slotMs
	}
	r.Deferral = &d
}

// DeferTurn makes a record wait in the wheel for its turn, until askMs at the latest.
func (r *RunState) DeferTurn(askMs int64) { r.Defer("", 0, askMs, true) }

// MoveSlot gives a record that waits in the wheel for its slot, or its turn, another one. It is not a new
// deferral: the event has not been published since.
func (r *RunState) MoveSlot(generation uint64, slotMs int64) {
	d := *r.Deferral
	d.SlotMs, d.Generation = slotMs, generation
	r.Deferral, r.DueMs, r.NextMs = &d, slotMs, slotMs
}

// Called ends the wait for a slot, before the result of a call is written: only
// Deferral.Count stays.
func (r *RunState) Called() {
	if r.Deferral == nil {
		return
	}
	if r.Deferral.Count == 0 {
		r.Deferral = nil
		return
	}
	r.Deferral = &Deferral{Count: r.Deferral.Count}
}

// FlowInfo is the wait of a timer for its slot.
type FlowInfo struct {
	// Key is the flow key whose limit holds the timer back.
	Key string `json:"key"`
	// Slot is the time at which the timer is called, or asks again if the limit has changed or
	// is used up by retries.
	Slot time.Time `json:"slot"`
	// Deferrals is the number of times that the timer had to wait.
	Deferrals uint32 `json:"deferrals,omitempty"`
	// Hold is HoldPause or HoldCircuit if a hold stops the calls of the key; otherwise empty. Until is
	// the end of the pause, or the time of the next probe. Only the answer to get has them.
	Hold  string    `json:"hold,omitempty"`
	Until time.Time `json:"until,omitzero"`
}

// The values of FlowInfo.Hold.
const (
	HoldPause   = "pause"   // the target asked for it, by Retry-After
	HoldCircuit = "circuit" // the target cannot be reached
)

// flowInfo returns the wait of a record for its slot; nil if it does not wait for one.
func (r *Record) flowInfo() *FlowInfo {
	if !r.Deferred() {
		return nil
	}
	return &FlowInfo{Key: r.Deferral.Flow, Slot: TimeOf(r.Deferral.SlotMs), Deferrals: r.Deferral.Count}
}
