package store

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

const (
	sealKeySubject = clockPrefix + "key.callback"
	sealKeyBytes   = 16 // AES-128
	// sealVersion begins a sealed callback, so that a later format can be distinguished.
	sealVersion = "1."
)

// errUnsealed is the error for a header that this store's key has not sealed.
var errUnsealed = schemas.Errorf(schemas.CodeDamaged, "header %s was not sealed with this store's key", schemas.HeaderCallback)

// Seal encrypts the callbacks of timers in fired events.
//
// A callback may contain credentials, and every consumer of timers.fired would read them.
// A published event therefore carries its callback in header schemas.HeaderCallback,
// encrypted (AES-GCM) with a key in bucket clock, which only Belfry's nodes may read.
// Nodes that call back decrypt the header in less than a microsecond; reading the record
// instead would cost a tenth of a callback.
//
// The first start of a store makes the key. If the key is lost, nodes take callbacks from
// the records, and a dead letter can be replayed as long as its record exists. If it is
// damaged, callbacks stay in the events. Safe for concurrent use.
type Seal struct {
	jet         *jet.Client
	log         zerolog.Logger
	formatLevel func() FormatLevel

	aead cipher.AEAD // nil without a usable key
}

func newSeal(c *jet.Client, log zerolog.Logger, level func() FormatLevel) *Seal {
	return &Seal{jet: c, log: log, formatLevel: level}
}

// loadKey reads the key, or makes it at the first start of the store. It must return
// before the other methods are called.
func (s *Seal) loadKey(ctx context.Context) error {
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
		s.log.Error().Str("key", sealKeySubject).Int("bytes", len(m.Data)).Msg("the key of callbacks is damaged: callbacks stay in fired events; delete it, and the next start makes a new one")
		return nil
	}
	block, err := aes.NewCipher(m.Data)
	if err != nil {
		return err
	}
	s.aead, err = cipher.NewGCMWithRandomNonce(block)
	return err
}

// SealCallback returns the value of schemas.HeaderCallback for a timer's callback. It
// returns "" if the callback must stay in the event: there is no usable key, or a live
// node of an older build does not read the header.
func (s *Seal) SealCallback(id schemas.TimerID, callback string) string {
	if s.aead == nil || s.formatLevel() < LevelSealedCallback {
		return ""
	}
	sealed := s.aead.Seal(nil, nil, []byte(callback), id[:])
	out := make([]byte, len(sealVersion), len(sealVersion)+base64.RawURLEncoding.EncodedLen(len(sealed)))
	copy(out, sealVersion)
	return string(base64.RawURLEncoding.AppendEncode(out, sealed))
}

// OpenCallback returns the callback that SealCallback has encrypted for the same timer.
// Its error is of schemas.CodeDamaged; the record also has the callback.
func (s *Seal) OpenCallback(id schemas.TimerID, sealed string) (string, error) {
	if s.aead == nil || len(sealed) < len(sealVersion) || sealed[:len(sealVersion)] != sealVersion {
		return "", errUnsealed
	}
	b, err := base64.RawURLEncoding.DecodeString(sealed[len(sealVersion):])
	if err != nil {
		return "", errUnsealed
	}
	if b, err = s.aead.Open(b[:0], nil, b, id[:]); err != nil {
		return "", errUnsealed
	}
	return string(b), nil
}
