package schemas

// The encoded values of a record's optional extensions.
func (r *Record) RetryValue() []byte { return r.Retry.append(nil) }

// The types of the critical extensions, and their encoded values.
const (
	ExtSchedule = extSchedule
	ExtOrigin   = extOrigin
)

func (s *Schedule) Value() []byte { return s.append(nil) }
func (o *Origin) Value() []byte   { return o.append(nil) }

func (r *Record) AttemptsValue() (b []byte) {
	for i := range r.Attempts {
		b = r.Attempts[i].append(b)
	}
	return b
}
