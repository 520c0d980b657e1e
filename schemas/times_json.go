package schemas

// The JSON of these answers has times with milliseconds; see milliTime.

// MarshalJSON implements json.Marshaler.
func (r BulkDeadReply) MarshalJSON() ([]byte, error) {
	type plain BulkDeadReply
	return marshal(struct {
		plain
		Last milliTime `json:"last,omitzero"`
	}{plain(r), milliTime(r.Last)})
}

// MarshalJSON implements json.Marshaler.
func (r FlowReply) MarshalJSON() ([]byte, error) {
	type plain FlowReply
	return marshal(struct {
		plain
		Drained milliTime `json:"drained,omitzero"`
	}{plain(r), milliTime(r.Drained)})
}

// MarshalJSON implements json.Marshaler.
func (l FlowLimitInfo) MarshalJSON() ([]byte, error) {
	type plain FlowLimitInfo
	return marshal(struct {
		plain
		PausedAt milliTime `json:"paused_at,omitzero"`
		Changed  milliTime `json:"changed,omitzero"`
	}{plain(l), milliTime(l.PausedAt), milliTime(l.Changed)})
}

// MarshalJSON implements json.Marshaler.
func (t FlowTarget) MarshalJSON() ([]byte, error) {
	type plain FlowTarget
	return marshal(struct {
		plain
		Asked milliTime `json:"asked"`
		Until milliTime `json:"until"`
	}{plain(t), milliTime(t.Asked), milliTime(t.Until)})
}

// MarshalJSON implements json.Marshaler.
func (k FlowKeyInfo) MarshalJSON() ([]byte, error) {
	type plain FlowKeyInfo
	return marshal(struct {
		plain
		Next    milliTime `json:"next,omitzero"`
		Drained milliTime `json:"drained,omitzero"`
	}{plain(k), milliTime(k.Next), milliTime(k.Drained)})
}

// MarshalJSON implements json.Marshaler.
func (h FlowHoldInfo) MarshalJSON() ([]byte, error) {
	type plain FlowHoldInfo
	return marshal(struct {
		plain
		Until     milliTime `json:"until,omitzero"`
		Open      milliTime `json:"open,omitzero"`
		NextProbe milliTime `json:"next_probe,omitzero"`
		Changed   milliTime `json:"changed,omitzero"`
	}{plain(h), milliTime(h.Until), milliTime(h.Open), milliTime(h.NextProbe), milliTime(h.Changed)})
}

// MarshalJSON implements json.Marshaler.
func (o OrderHead) MarshalJSON() ([]byte, error) {
	type plain OrderHead
	return marshal(struct {
		plain
		Since milliTime `json:"since"`
		Until milliTime `json:"until,omitzero"`
	}{plain(o), milliTime(o.Since), milliTime(o.Until)})
}

// MarshalJSON implements json.Marshaler.
func (r SearchReply) MarshalJSON() ([]byte, error) {
	type plain SearchReply
	return marshal(struct {
		plain
		AsOf milliTime `json:"as_of,omitzero"`
	}{plain(r), milliTime(r.AsOf)})
}

// MarshalJSON implements json.Marshaler.
func (r CountsReply) MarshalJSON() ([]byte, error) {
	type plain CountsReply
	return marshal(struct {
		plain
		AsOf milliTime `json:"as_of,omitzero"`
	}{plain(r), milliTime(r.AsOf)})
}

// MarshalJSON implements json.Marshaler.
func (b BucketInfo) MarshalJSON() ([]byte, error) {
	type plain BucketInfo
	return marshal(struct {
		plain
		Start milliTime `json:"start"`
	}{plain(b), milliTime(b.Start)})
}

// MarshalJSON implements json.Marshaler.
func (c CalendarInfo) MarshalJSON() ([]byte, error) {
	type plain CalendarInfo
	return marshal(struct {
		plain
		Changed milliTime `json:"changed,omitzero"`
	}{plain(c), milliTime(c.Changed)})
}

// MarshalJSON implements json.Marshaler.
func (e ExportInfo) MarshalJSON() ([]byte, error) {
	type plain ExportInfo
	return marshal(struct {
		plain
		Due milliTime `json:"due,omitzero"`
	}{plain(e), milliTime(e.Due)})
}

// MarshalJSON implements json.Marshaler.
func (f FlowInfo) MarshalJSON() ([]byte, error) {
	type plain FlowInfo
	return marshal(struct {
		plain
		Slot  milliTime `json:"slot"`
		Until milliTime `json:"until,omitzero"`
	}{plain(f), milliTime(f.Slot), milliTime(f.Until)})
}

// MarshalJSON implements json.Marshaler.
func (r ClockReply) MarshalJSON() ([]byte, error) {
	type plain ClockReply
	return marshal(struct {
		plain
		Now    milliTime `json:"now"`
		Next   milliTime `json:"next,omitzero"`
		Target milliTime `json:"target,omitzero"`
	}{plain(r), milliTime(r.Now), milliTime(r.Next), milliTime(r.Target)})
}
