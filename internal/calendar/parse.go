package calendar

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// MaxCronLength bounds a cron expression, in bytes.
const MaxCronLength = 256

const attrCron = "timercron"

// field describes one field of a cron expression.
type field struct {
	name     string // as in error messages
	min, max int
	names    []string // of the values from min, if they have names
	// hashMax is the greatest value of H: in the day of month a day that every month has.
	hashMax int
	// period writes a timerevery value for "every n", used for steps that are too large.
	period string
}

// size is the number of values.
func (f *field) size() int { return f.max - f.min + 1 }

var (
	secondField = &field{name: "second", max: 59, hashMax: 59, period: "PT%dS"}
	minuteField = &field{name: "minute", max: 59, hashMax: 59, period: "PT%dM"}
	hourField   = &field{name: "hour", max: 23, hashMax: 23, period: "PT%dH"}
	dayField    = &field{name: "day of month", min: 1, max: 31, hashMax: 28, period: "P%dD"}
	monthField  = &field{name: "month", min: 1, max: 12, hashMax: 12, period: "P%dM", names: []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}}
	weekField   = &field{name: "day of week", max: 6, hashMax: 6, period: "P%dD", names: []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}}
)

// cronFields are the fields in order. An expression of five fields starts at the minute.
var cronFields = [...]*field{secondField, minuteField, hourField, dayField, monthField, weekField}

// aliases are the expressions that a name stands for.
var aliases = map[string]string{
	"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}

// cronParser compiles one cron expression.
type cronParser struct {
	expression string
	id         string
	cron       cron
	// resolved are the fields with H replaced by its values.
	resolved []string
	hashed   bool
	warnings []string
}

// fail reports a mistake at a position of the expression.
func (p *cronParser) fail(offset int, reason, instead string, args ...any) *Error {
	return &Error{attrCron, p.expression, offset, reason, fmt.Sprintf(instead, args...)}
}

// parseCron compiles an expression. daysRule is the value of timerdays.
func parseCron(expression, id, daysRule string) (*cronParser, error) {
	p := &cronParser{expression: expression, id: id}
	if len(expression) > MaxCronLength {
		return nil, p.fail(MaxCronLength, fmt.Sprintf("longer than %d characters", MaxCronLength), "split it into several schedules")
	}
	text := expression
	if strings.HasPrefix(strings.TrimSpace(text), "@") {
		var err *Error
		if text, err = p.alias(strings.TrimSpace(text)); err != nil {
			return nil, err
		}
	}
	if err := p.foreign(text); err != nil {
		return nil, err
	}
	words, offsets := splitFields(text)
	if err := p.countFields(words, offsets); err != nil {
		return nil, err
	}
	return p, p.compile(words, offsets, daysRule)
}

// splitFields splits at white space and returns the fields with their offsets.
func splitFields(text string) (words []string, offsets []int) {
	for i := 0; i < len(text); {
		if strings.IndexByte(" \t\r\n", text[i]) >= 0 {
			i++
			continue
		}
		end := i
		for end < len(text) && strings.IndexByte(" \t\r\n", text[end]) < 0 {
			end++
		}
		words, offsets = append(words, text[i:end]), append(offsets, i)
		i = end
	}
	return words, offsets
}

// alias returns the expression that @name stands for.
func (p *cronParser) alias(text string) (string, *Error) {
	words := strings.Fields(text)
	name, rest := strings.ToLower(words[0]), strings.Join(words[1:], " ")
	at := strings.Index(p.expression, "@")
	switch full, ok := aliases[name]; {
	case name == "@every" && rest != "":
		return "", p.fail(at, "@every is not a cron expression", "write timerevery %s", rest)
	case name == "@every":
		return "", p.fail(at, "@every is not a cron expression", "write timerevery and a period, for example timerevery PT15M")
	case name == "@reboot":
		return "", p.fail(at, "@reboot has no meaning for a distributed schedule: no single host restarts it", "add a one-shot timer with timerafter when your service starts")
	case ok && rest != "":
		return "", p.fail(at, name+" stands for a whole expression and takes no further fields", "write %s alone, or %q with your changes", name, full)
	case ok:
		return full, nil
	}
	return "", p.fail(at, fmt.Sprintf("unknown name %q", name), "write @hourly, @daily, @midnight, @weekly, @monthly, @yearly or @annually, or 5 fields")
}

// foreign refuses the syntax of other systems that is not a list of fields.
func (p *cronParser) foreign(text string) *Error {
	trimmed := strings.TrimSpace(text)
	at := len(text) - len(strings.TrimLeft(text, " \t\r\n"))
	lower := strings.ToLower(trimmed)
	for _, prefix := range []string{"cron_tz=", "tz="} {
		if strings.HasPrefix(lower, prefix) {
			zone, rest, _ := strings.Cut(trimmed[len(prefix):], " ")
			return p.fail(at, "a time zone is not part of the expression", "write timertz %s and timercron %q", zone, strings.TrimSpace(rest))
		}
	}
	switch {
	case strings.HasPrefix(lower, "cron("):
		return p.fail(at, "cron(…) is the syntax of another system", "write the fields alone, without a year: minute, hour, day of month, month, day of week")
	case strings.HasPrefix(lower, "rate("):
		return p.fail(at, "rate(…) is the syntax of another system", "write timerevery and a period, for example timerevery PT5M")
	}
	return nil
}

// countFields accepts five fields, or six with seconds first.
func (p *cronParser) countFields(words []string, offsets []int) *Error {
	const want = "minute, hour, day of month, month, day of week"
	n := len(words)
	switch {
	case n == 0:
		return p.fail(whole, "the expression is empty", "write 5 fields: %s", want)
	case n < 5:
		return p.fail(whole, fmt.Sprintf("%d fields", n), "write 5 fields: %s; or 6 with seconds first", want)
	case n == 7:
		return p.fail(offsets[6], "7 fields: there is no year field", "write at most 6 fields, seconds first, and bound the schedule by timerstart and timerend")
	case n > 7:
		return p.fail(offsets[5], fmt.Sprintf("%d fields", n), "write 5 fields: %s; or 6 with seconds first", want)
	case n == 6 && looksLikeYear(words[5]):
		return p.fail(offsets[5], "there is no year field: of 6 fields the first is seconds and the last is the day of week", "drop the year and bound the schedule by timerstart and timerend")
	}
	return nil
}

// looksLikeYear reports whether a field contains a number of four digits.
func looksLikeYear(word string) bool {
	digits := 0
	for _, c := range word + " " {
		if c >= '0' && c <= '9' {
			digits++
			continue
		}
		if digits == 4 {
			return true
		}
		digits = 0
	}
	return false
}

// compile parses the fields and checks them together.
func (p *cronParser) compile(words []string, offsets []int, daysRule string) error {
	c := &p.cron
	fields := cronFields[:]
	if c.withSeconds = len(words) == 6; !c.withSeconds {
		c.second, fields = 1, fields[1:]
	}
	for i, f := range fields {
		if err := p.field(f, words[i], offsets[i]); err != nil {
			return err
		}
	}
	minute := len(words) - 5
	c.wildcard = words[minute][0] == '*' || words[minute+1][0] == '*'
	c.days.anyMonth = c.days.month == 1<<32-2
	c.days.anyWeek = c.days.week == 1<<7-1
	c.days.either = daysRule == daysOr
	dayAt, weekAt := offsets[len(words)-3], offsets[len(words)-1]
	if !c.days.anyMonth && !c.days.anyWeek && daysRule == "" {
		return p.fail(weekAt, "day of month and day of week are both restricted, which some implementations read as AND and others as OR",
			"write MON#1 for the first Monday of the month, or two schedules for either day, or set timerdays to \"and\" or \"or\"")
	}
	if !c.matchesSomeDay() {
		return p.fail(dayAt, "no date matches, so it would never run", "write L for the last day of the month, or days that the months have")
	}
	p.warnOfShortMonths()
	return nil
}

// warnOfShortMonths warns if the greatest day of the month is missing from one of the months.
func (p *cronParser) warnOfShortMonths() {
	const commonYear = 2001
	c := &p.cron
	greatest := 31 - bits.LeadingZeros32(c.days.month)
	for month := 1; month <= 12 && !c.days.anyMonth; month++ {
		if c.month&(1<<month) != 0 && greatest > daysIn(commonYear, month) {
			p.warn("%s has no day %d in every year; L is the last day of every month", time.Month(month), greatest)
			return
		}
	}
}

// field parses a list of items into the cron's sets.
func (p *cronParser) field(f *field, word string, offset int) error {
	if word == "?" && (f == dayField || f == weekField) {
		word = "*"
	}
	var set uint64
	var resolved []string
	for item := range strings.SplitSeq(word, ",") {
		values, text, err := p.item(f, item, offset)
		if err != nil {
			return err
		}
		set |= values
		resolved = append(resolved, text)
		offset += len(item) + 1
	}
	p.resolved = append(p.resolved, strings.Join(resolved, ","))
	switch f {
	case secondField:
		p.cron.second = set
	case minuteField:
		p.cron.minute = set
	case hourField:
		p.cron.hour = uint32(set)
	case dayField:
		p.cron.days.month = uint32(set)
	case monthField:
		p.cron.month = uint16(set)
	case weekField:
		p.cron.days.week = uint8(set)
	}
	return nil
}

// item parses one item of a list. It returns the values as bits, and the item with H
// replaced. Days such as L and MON#1 go into p.cron.days.
func (p *cronParser) item(f *field, item string, offset int) (uint64, string, error) {
	if item == "" {
		return 0, "", p.fail(offset, "an empty item in the "+f.name+" field", "write a value between two commas")
	}
	if done, err := p.special(f, item, offset); done || err != nil {
		return 0, item, err
	}
	body, stepText, stepped := strings.Cut(item, "/")
	step := 1
	if stepped {
		var err error
		if step, err = p.step(f, stepText, offset+len(body)+1); err != nil {
			return 0, "", err
		}
	}
	if strings.EqualFold(body[:min(1, len(body))], "h") {
		return p.hash(f, body, step, stepped, offset)
	}
	from, to, err := p.bounds(f, body, stepped, offset)
	if err != nil {
		return 0, "", err
	}
	return p.values(f, item, from, to, step), item, nil
}

// bounds parses "*", "a" or "a-b". A single value with a step reaches to the maximum.
func (p *cronParser) bounds(f *field, body string, stepped bool, offset int) (from, to int, err error) {
	if body == "*" {
		return f.min, f.max, nil
	}
	first, last, ranged := strings.Cut(body, "-")
	if from, err = p.value(f, first, offset); err != nil {
		return 0, 0, err
	}
	switch {
	case ranged:
		to, err = p.value(f, last, offset+len(first)+1)
	case stepped:
		if f == weekField {
			from %= 7 // 7 is Sunday
		}
		to = f.max
	default:
		to = from
	}
	return from, to, err
}

// values expands a range, which may wrap, into bits. In the day of week, 7 is Sunday.
func (p *cronParser) values(f *field, item string, from, to, step int) uint64 {
	if to < from {
		to += f.size()
	}
	set := uint64(0)
	for v := from; v <= to; v += step {
		set |= 1 << (f.min + (v-f.min)%f.size())
	}
	if step > 1 && bits.OnesCount64(set) == 1 {
		p.warn("%q in the %s field matches one value only", item, f.name)
	}
	if gap := f.size() % step; step > 1 && gap != 0 && from == f.min && to == f.max && f != dayField && bits.OnesCount64(set) > 1 {
		p.warn("%q is uneven: from %s %d the next is %d, %d later", item, f.name, f.min+(f.size()-1)/step*step, f.min, f.size()-(f.size()-1)/step*step)
	}
	return set
}

// step parses the number after a slash.
func (p *cronParser) step(f *field, text string, offset int) (int, error) {
	n, ok := number(text)
	switch {
	case !ok:
		return 0, p.fail(offset, fmt.Sprintf("%q is not a step", text), "write a number of 1 or more after the slash")
	case n == 0:
		return 0, p.fail(offset, "the step is 0", "write a number of 1 or more after the slash")
	case n > f.size():
		return 0, p.fail(offset, fmt.Sprintf("the step %d is larger than the %s field, which has %d values", n, f.name, f.size()), "for every %d write timerevery %s", n, fmt.Sprintf(f.period, n))
	}
	return n, nil
}

// value parses a number or a name.
func (p *cronParser) value(f *field, text string, offset int) (int, error) {
	want := fmt.Sprintf("%d-%d", f.min, f.max)
	if f == weekField {
		want = "0-7"
	}
	if f.names != nil {
		want += " or " + f.names[0] + "-" + f.names[len(f.names)-1]
	}
	n, ok := number(text)
	switch {
	case ok && (n >= f.min && n <= f.max || f == weekField && n == 7):
		return n, nil
	case ok && n == f.max+1 && f.min == 0:
		return 0, p.fail(offset, fmt.Sprintf("%s %d does not exist", f.name, n), "write 0, or another value of %s", want)
	case ok:
		return 0, p.fail(offset, fmt.Sprintf("%s %d does not exist", f.name, n), "write %s", want)
	case text == "":
		return 0, p.fail(offset, "a value is missing in the "+f.name+" field", "write %s", want)
	case text == "?":
		return 0, p.fail(offset, "? stands alone in the day of month or the day of week", "write *")
	}
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + i, nil
		}
		if len(text) > 3 && strings.EqualFold(text[:3], name) {
			return 0, p.fail(offset, fmt.Sprintf("%q is not a name of a %s", text, f.name), "write %s", name)
		}
	}
	if f == weekField && strings.EqualFold(text, "L") {
		return 0, p.fail(offset, "L alone is not a day of the week", "write SAT for Saturdays, or FRIL for the last Friday of the month")
	}
	return 0, p.fail(offset, fmt.Sprintf("%q is not a %s", text, f.name), "write %s", want)
}

// number parses up to 6 digits.
func number(text string) (int, bool) {
	if text == "" || len(text) > 6 || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil
}

// special parses L, L-n, LW and nW of the day of month, and n#k and nL of the day of week.
func (p *cronParser) special(f *field, item string, offset int) (done bool, err error) {
	upper := strings.ToUpper(item)
	switch f {
	case dayField:
		return p.specialDay(upper, offset)
	case weekField:
		return p.specialWeekday(upper, offset)
	}
	if upper == "L" || upper == "LW" || strings.Contains(upper, "#") {
		return false, p.fail(offset, fmt.Sprintf("%q is for days, not for the %s field", item, f.name), "write %d-%d", f.min, f.max)
	}
	return false, nil
}

func (p *cronParser) specialDay(upper string, offset int) (bool, error) {
	d := &p.cron.days
	switch {
	case upper == "L":
		d.fromLast |= 1
	case upper == "LW":
		d.lastWeekday = true
	case upper == "WL":
		return false, p.fail(offset, "WL is not a day", "write LW for the last weekday of the month")
	case strings.HasPrefix(upper, "L-"):
		n, ok := number(upper[2:])
		if !ok || n > 30 {
			return false, p.fail(offset+2, fmt.Sprintf("%q is not a number of days before the last day", upper[2:]), "write L-0 to L-30")
		}
		d.fromLast |= 1 << n
	case len(upper) > 1 && strings.HasSuffix(upper, "W"):
		n, ok := number(upper[:len(upper)-1])
		if !ok || n < 1 || n > 31 {
			return false, p.fail(offset, fmt.Sprintf("%q is not a nearest weekday", upper), "write 1W to 31W, or LW")
		}
		d.nearest |= 1 << n
	case strings.Contains(upper, "#"):
		return false, p.fail(offset, fmt.Sprintf("%q is for the day of week, the last field", upper), "write 1-31, L, L-n, LW or nW")
	default:
		return false, nil
	}
	return true, nil
}

func (p *cronParser) specialWeekday(upper string, offset int) (bool, error) {
	d := &p.cron.days
	day, nth, numbered := strings.Cut(upper, "#")
	last := len(upper) > 1 && strings.HasSuffix(upper, "L")
	switch {
	case numbered && nth == "L":
		return false, p.fail(offset, fmt.Sprintf("%q is not a day", upper), "write %sL for the last one of the month", day)
	case numbered:
		n, ok := number(nth)
		if !ok || n < 1 || n > 5 {
			return false, p.fail(offset+len(day)+1, fmt.Sprintf("%q is not the number of a week", nth), "write #1 to #5")
		}
		w, err := p.value(weekField, day, offset)
		if err != nil {
			return false, err
		}
		d.nth |= 1 << (w%7*5 + n - 1)
	case last:
		w, err := p.value(weekField, upper[:len(upper)-1], offset)
		if err != nil {
			return false, err
		}
		d.lastWeek |= 1 << (w % 7)
	case strings.HasSuffix(upper, "W"):
		return false, p.fail(offset, fmt.Sprintf("%q is for the day of month", upper), "write it in the third field from the end")
	default:
		return false, nil
	}
	return true, nil
}

// hash parses H, H/step, H(a-b) and H(a-b)/step: values chosen by the timer ID, so that
// schedules with the same expression spread over the field.
func (p *cronParser) hash(f *field, body string, step int, stepped bool, offset int) (uint64, string, error) {
	from, to := f.min, f.hashMax
	if len(body) > 1 {
		inner, ok := strings.CutPrefix(body[1:], "(")
		inner, closed := strings.CutSuffix(inner, ")")
		first, last, ranged := strings.Cut(inner, "-")
		if !ok || !closed || !ranged {
			return 0, "", p.fail(offset, fmt.Sprintf("%q is not a hashed value", body), "write H, H/15, H(0-29) or H(0-29)/10")
		}
		var err error
		if from, err = p.value(f, first, offset+2); err != nil {
			return 0, "", err
		}
		if to, err = p.value(f, last, offset+2+len(first)+1); err != nil {
			return 0, "", err
		}
		if to < from {
			return 0, "", p.fail(offset+2, fmt.Sprintf("the range %s of H ends before it begins", inner), "write the smaller value first")
		}
	}
	p.hashed = true
	// Each field has a hash of its own, so that H H does not tie the hour to the minute.
	h := hashID(p.id, int64(slices.Index(cronFields[:], f)))
	if !stepped {
		v := from + int(h%uint64(to-from+1))
		return p.values(f, body, v, v, 1), strconv.Itoa(v), nil
	}
	v := from + int(h%uint64(min(step, to-from+1)))
	return p.values(f, body, v, to, step), fmt.Sprintf("%d-%d/%d", v, to, step), nil
}

func (p *cronParser) warn(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}
