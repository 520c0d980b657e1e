// The part of Node's modules that this package uses, so that its check needs no types of Node.
declare module "node:crypto" {
  export const webcrypto: Crypto;
}
