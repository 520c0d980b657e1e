package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
)

// Values of clocks and calendars are JSON objects whose last field is the CRC-32C of the bytes
// before it. The checksum also reveals damage that leaves valid JSON.

// sumField begins the field of the checksum.
const sumField = `,"sum":`

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// marshalSummed encodes an object with at least one field, and adds the checksum.
func marshalSummed(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	b = b[:len(b)-1]
	sum := crc32.Checksum(b, castagnoli)
	b = append(b, sumField...)
	return append(strconv.AppendUint(b, uint64(sum), 10), '}'), nil
}

// checkSum reports whether a value has a checksum, and whether sum, which was decoded from it,
// is right.
func checkSum(b []byte, sum uint32) (has, right bool) {
	i := bytes.LastIndex(b, []byte(sumField))
	return i >= 0, i >= 0 && crc32.Checksum(b[:i], castagnoli) == sum
}
