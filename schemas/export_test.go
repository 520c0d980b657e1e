package schemas

// EncodeHTTPHeader percent-encodes the value of an attribute in a header.
var EncodeHTTPHeader = encodeHeader
