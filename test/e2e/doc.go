// Package e2e tests the promises of the README end to end: whole nodes on real servers,
// with clients that use only Belfry's subjects.
package e2e
