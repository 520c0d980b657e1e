package belfry

import "github.com/cloudevents/sdk-go/v2/event"

// Encode returns the error of encoding an add, the step of Add before the request.
func Encode(e event.Event, opts ...AddOption) error {
	_, err := encode(&e, opts)
	return err
}

// Validate returns the error of encoding and validating an add, the step of AddAsync before
// the publish.
func Validate(e event.Event, opts ...AddOption) error {
	_, err := validated(&e, opts)
	return err
}
