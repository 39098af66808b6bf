#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fairlead_fuzz::run("rings", bytes);
});
