package scheduler

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
)

// Assign spreads shards over nodes: each goes to the node that ranks first for it
// by rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to
// increase hit rates", 1998) and has room, so that no node has more than
// ceil(shards/nodes). All who know the same nodes come to the same result, and a
// node that joins or leaves moves little else. The result has a node for every
// shard, and is nil without nodes.
func Assign(shards int, nodes []string) []string {
	if len(nodes) == 0 {
		return nil
	}
	room := make(map[string]int, len(nodes))
	most := (shards + len(nodes) - 1) / len(nodes)
	out := make([]string, shards)
	for n := range out {
		for _, node := range ranking(n, nodes) {
			if room[node] < most {
				room[node]++
				out[n] = node
				break
			}
		}
	}
	return out
}

// ranking is the order in which nodes are to own a shard.
func ranking(shard int, nodes []string) []string {
	type scored struct {
		node  string
		score uint64
	}
	all := make([]scored, len(nodes))
	for i, node := range nodes {
		sum := sha256.Sum256([]byte(strconv.Itoa(shard) + "/" + node))
		all[i] = scored{node, binary.BigEndian.Uint64(sum[:])}
	}
	slices.SortFunc(all, func(a, b scored) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return strings.Compare(a.node, b.node)
	})
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = s.node
	}
	return out
}
