/** WebAssembly text, which the bundler turns into its bytes in base64. */
declare module "*.wat" {
  const base64: string;
  export default base64;
}
