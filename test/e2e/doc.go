// Package e2e tests what the README promises, end to end: whole nodes on real
// servers, with clients that know nothing of Belfry but its subjects.
package e2e
