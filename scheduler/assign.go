package scheduler

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
)

// Assign spreads shards over nodes by rendezvous hashing (Thaler and Ravishankar, "Using
// name-based mappings to increase hit rates", 1998). It assigns each shard to the first
// node in the shard's ranking that has fewer than ceil(shards/nodes) shards. The result
// depends only on the arguments, so all nodes that know the same nodes compute the same
// assignment; when a node joins or leaves, few other shards move. The result has one node
// for each shard, and is nil if there are no nodes.
func Assign(shards int, nodes []string) []string {
	return assign(shards, nodes, func(int) []string { return nodes })
}

// assign is Assign with a restriction: able returns the nodes that can own a shard, at
// least one. If a restriction requires it, a node gets more than an even share.
func assign(shards int, nodes []string, able func(shard int) []string) []string {
	if len(nodes) == 0 {
		return nil
	}
	most := (shards + len(nodes) - 1) / len(nodes)
	a := assignment{owned: make(map[string]int, len(nodes)), out: make([]string, shards)}
	var restricted []int // shards that not every node can own
	for n := range shards {
		if len(able(n)) < len(nodes) {
			restricted = append(restricted, n)
		}
	}
	for _, n := range restricted {
		to := able(n)
		a.give(n, to, max(most, (len(restricted)+len(to)-1)/len(to)))
	}
	for n := range shards {
		if a.out[n] == "" {
			a.give(n, nodes, most)
		}
	}
	return a.out
}

// assignment is an assignment in progress.
type assignment struct {
	owned map[string]int // number of shards by node
	out   []string       // by shard
}

// give assigns a shard to the first node in its ranking that has fewer than most shards,
// or to the first node if none has.
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

// ranking sorts nodes by their preference for a shard: the first should own it.
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
