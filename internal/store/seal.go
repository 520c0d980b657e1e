package store

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"

	"github.com/belfryio/belfry/schemas"
)

// A timer's callback may hold credentials, and everybody who consumes timers.fired
// would read it. So it leaves the event when that is published, and travels in header
// schemas.HeaderCallback, sealed with a key that only those have who may read the
// clock bucket: Belfry's nodes. Nodes that call back open it without reading the
// record, which would cost a tenth of a callback; a seal costs less than a
// microsecond.
//
// The key is made at the first start. If it is lost, callbacks are taken from the
// records, and a dead letter can be replayed as long as its record exists.

const (
	sealKeySubject = clockPrefix + "key.callback"
	sealKeyBytes   = 16 // AES-128
	// sealVersion begins a sealed callback, so that another kind can follow.
	sealVersion = "1."
)

// errUnsealed is returned for what this store's key has not sealed.
var errUnsealed = schemas.Errorf(schemas.CodeDamaged, "header %s was not sealed with this store's key", schemas.HeaderCallback)

// loadSealKey reads the key, and makes it at the first start.
func (s *Store) loadSealKey(ctx context.Context) error {
	m, err := s.jet.Last(ctx, clockStream, sealKeySubject)
	if errors.Is(err, schemas.ErrNotFound) {
		key := make([]byte, sealKeyBytes)
		rand.Read(key) // never fails
		if err := s.jet.CreateOnce(ctx, clockStream, sealKeySubject, key); err != nil {
			return err
		}
		m, err = s.jet.Last(ctx, clockStream, sealKeySubject)
	}
	if err != nil {
		return err
	}
	if len(m.Data) != sealKeyBytes {
		s.log.Error().Str("key", sealKeySubject).Int("bytes", len(m.Data)).Msg("the key of callbacks is damaged: callbacks stay in fired events; delete it, and a new one is made at the next start")
		return nil
	}
	block, err := aes.NewCipher(m.Data)
	if err != nil {
		return err
	}
	s.seal, err = cipher.NewGCMWithRandomNonce(block)
	return err
}

// SealCallback returns the value of schemas.HeaderCallback for a timer's callback, or
// "" if the callback must stay in the event, because a node of an older build lives
// that would not find it elsewhere.
func (s *Store) SealCallback(id schemas.TimerID, callback string) string {
	if s.seal == nil || s.level() < LevelSealedCallback {
		return ""
	}
	sealed := s.seal.Seal(nil, nil, []byte(callback), id[:])
	out := make([]byte, len(sealVersion), len(sealVersion)+base64.RawURLEncoding.EncodedLen(len(sealed)))
	copy(out, sealVersion)
	return string(base64.RawURLEncoding.AppendEncode(out, sealed))
}

// OpenCallback returns the callback that SealCallback has sealed for the same timer.
// Its error is of schemas.CodeDamaged; the record has the callback, too.
func (s *Store) OpenCallback(id schemas.TimerID, sealed string) (string, error) {
	if s.seal == nil || len(sealed) < len(sealVersion) || sealed[:len(sealVersion)] != sealVersion {
		return "", errUnsealed
	}
	b, err := base64.RawURLEncoding.DecodeString(sealed[len(sealVersion):])
	if err != nil {
		return "", errUnsealed
	}
	if b, err = s.seal.Open(b[:0], nil, b, id[:]); err != nil {
		return "", errUnsealed
	}
	return string(b), nil
}
