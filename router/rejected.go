package router

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// RejectedList returns a page of rejected adds, oldest first. Errors: bad_request,
// unavailable.
func (s *Service) RejectedList(ctx context.Context, q schemas.RejectedListRequest) (schemas.RejectedListReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (schemas.RejectedListReply, error) {
		page, err := s.o.Store.RejectedList(ctx, store.RejectedQuery{Tenant: s.scope.tenant(), Cursor: q.Cursor, Limit: q.Limit})
		if err != nil {
			return schemas.RejectedListReply{}, err
		}
		reply := schemas.RejectedListReply{Rejected: make([]schemas.RejectedInfo, 0, len(page.Adds)), Cursor: page.Cursor}
		for _, m := range page.Adds {
			reply.Rejected = append(reply.Rejected, rejectedInfo(m))
		}
		return reply, nil
	})
}

func rejectedInfo(m *store.Letter) schemas.RejectedInfo {
	seq, err := strconv.ParseUint(m.Get(schemas.HeaderOriginalSequence), 10, 64)
	if err != nil {
		seq = 0 // the message was not published by Belfry
	}
	info := schemas.RejectedInfo{
		Sequence: m.Sequence, AddSequence: seq, Rejected: m.Stored.UTC(),
		Code: schemas.Code(m.Get(schemas.HeaderErrorCode)), Error: m.Get(schemas.HeaderError),
		DataBytes: len(m.Data), Data: strings.ToValidUTF8(string(m.Data[:min(len(m.Data), schemas.MaxRejectedData)]), "?"),
	}
	info.Tenant, info.Account = m.Get(schemas.HeaderTenant), m.Get(schemas.HeaderAccount)
	info.Source, info.ID = eventName(m.Header, m.Data)
	return info
}

// eventName returns the source and id of a rejected event, as far as they can be decoded
// from the headers of binary mode or the document of structured mode.
func eventName(header map[string][]string, data []byte) (source, id string) {
	first := func(name string) string {
		if v := header[name]; len(v) > 0 {
			return v[0]
		}
		return ""
	}
	if source, id = first("ce-source"), first("ce-id"); source != "" || id != "" {
		return source, id
	}
	var doc struct{ Source, ID any }
	if json.Unmarshal(data, &doc) != nil {
		return "", ""
	}
	source, _ = doc.Source.(string)
	id, _ = doc.ID.(string)
	return source, id
}
