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
	return assign(shards, nodes, func(int) []string { return nodes })
}

// assign is Assign where some shards can only go to some of the nodes, which may then
// have more than an even share. able returns the nodes for a shard, at least one.
func assign(shards int, nodes []string, able func(shard int) []string) []string {
	if len(nodes) == 0 {
		return nil
	}
	most := (shards + len(nodes) - 1) / len(nodes)
	a := assignment{owned: make(map[string]int, len(nodes)), out: make([]string, shards)}
	var choosy []int // shards that not every node can own
	for n := range shards {
		if len(able(n)) < len(nodes) {
			choosy = append(choosy, n)
		}
	}
	for _, n := range choosy {
		to := able(n)
		a.give(n, to, max(most, (len(choosy)+len(to)-1)/len(to)))
	}
	for n := range shards {
		if a.out[n] == "" {
			a.give(n, nodes, most)
		}
	}
	return a.out
}

type assignment struct {
	owned map[string]int
	out   []string // by shard
}

// give assigns a shard to the first of the nodes in its ranking that has fewer than most
// shards. If all have, it goes to the first.
func (a *assignment) give(shard int, nodes []string, most int) {
	ranked := ranking(shard, nodes)
	to := ranked[0]
	for _, node := range ranked {
		if a.owned[node] < most {
			to = node
			break
		}
	}
	a.owned[to]++
	a.out[shard] = to
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
