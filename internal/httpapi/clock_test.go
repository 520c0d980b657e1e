package httpapi_test

import (
	"testing"

	"github.com/belfryio/belfry/internal/app"
)

// testClock: a development node shows and moves its clock; another node refuses that.
func testClock(t *testing.T, n *node) {
	n.send(t, "GET", "/v1/clock", "").want(t, 400, `belfry dev`)
	n.send(t, "POST", "/v1/clock/advance", `{"by":"1h"}`, "Content-Type", jsonType).want(t, 400, `belfry dev`)
	dev := startNodeWith(t, func(o *app.Options) { o.Development, o.Frozen = true, true })
	dev.send(t, "GET", "/v1/clock", "").want(t, 200, `"frozen":true`, `"pending":0`)
	dev.add(t, `{"in":"720h","svc":"clock"}`)
	dev.send(t, "POST", "/v1/clock/advance", `{"by":"30d"}`, "Content-Type", jsonType).want(t, 200, `"fired":1`, `"steps":1`)
	dev.send(t, "POST", "/v1/clock/to", `{"at":"2099-01-01T00:00:00Z"}`, "Content-Type", jsonType).want(t, 200, `"now":"2099-01-01T00:00:00.000Z"`)
	dev.add(t, `{"in":"1h","svc":"clock"}`)
	dev.send(t, "POST", "/v1/clock/run-until-idle", "").want(t, 200, `"now":"2099-01-01T01:00:00.000Z"`, `"fired":1`)
	dev.send(t, "POST", "/v1/clock/to", `{"at":"2098-01-01T00:00:00Z"}`, "Content-Type", jsonType).want(t, 400, "only forward")
	dev.send(t, "POST", "/v1/clock/advance", `{"by":"soon"}`, "Content-Type", jsonType).want(t, 400, "not a duration")
}
