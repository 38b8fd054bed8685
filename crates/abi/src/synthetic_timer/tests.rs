use super::*;

fn message(timer: u32) -> TimerMessage {
    TimerMessage {
        timer,
        expiration: RefTime::from_100ns(1000 + u64::from(timer)),
        delivery: RefTime::from_100ns(2000),
    }
}

#[cfg(not(loom))]
mod machine {
    use super::*;

    #[test]
    fn config_fields_are_where_the_interface_says() {
        for (value, source, vector) in [(0x1ed9, 0, 0xed), (0xf_1fff, 15, 0xff), (0x2_0003, 2, 0)] {
            let config = Config(value);
            assert_eq!(
                (config.source(), config.vector()),
                (source, vector),
                "{value:#x}"
            );
            assert!(!config.has(Config::RESERVED));
        }
        assert!(Config(1 << 13).has(Config::RESERVED));
        assert!(Config(1 << 20).has(Config::RESERVED));
        let named = Config::ENABLED
            | Config::PERIODIC
            | Config::LAZY
            | Config::AUTO_ENABLE
            | Config::DIRECT_MODE
            | Config::for_source(15).0
            | Config::for_vector(0xff).0;
        assert_eq!(named, !Config::RESERVED);
    }

    #[test]
    fn a_message_goes_through_the_slot() {
        let page = MessagePage::new();
        let slot = page.slot(2);
        assert_eq!(slot.take(), None);
        assert_eq!(slot.post(message(3)), Posted::Delivered);
        assert!(slot.is_taken() && !page.slot(3).is_taken());
        assert_eq!(slot.take(), Some((message(3), EndOfMessage::NotNeeded)));
        assert!(!slot.is_taken());
    }

    #[test]
    fn a_taken_slot_is_marked_and_the_guest_is_asked_for_an_end_of_message() {
        let slot = MessageSlot::new();
        assert_eq!(slot.post(message(0)), Posted::Delivered);
        assert_eq!(slot.post(message(1)), Posted::SlotTaken);
        assert_eq!(slot.take(), Some((message(0), EndOfMessage::Write)));
        assert_eq!(slot.post(message(1)), Posted::Delivered);
        assert_eq!(slot.take(), Some((message(1), EndOfMessage::NotNeeded)));
    }

    #[test]
    fn a_slot_with_a_foreign_message_is_taken() {
        let slot = MessageSlot::new();
        slot.kind.store(1, Ordering::Relaxed);
        assert_eq!(slot.post(message(0)), Posted::SlotTaken);
        assert_eq!(slot.take(), None);
    }
}

#[cfg(loom)]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// However the two halves interleave, a message that waits is either posted by the hypervisor's second look or announced to the guest.
    #[test]
    fn model_no_message_is_left_behind() {
        loom::model(|| {
            let slot = Arc::new(MessageSlot::new());
            assert_eq!(slot.post(message(0)), Posted::Delivered);
            let guest = {
                let slot = Arc::clone(&slot);
                thread::spawn(move || slot.take())
            };
            let posted = slot.post(message(1));
            let taken = guest.join().unwrap();
            let (first, end) = taken.expect("the first message is there");
            assert_eq!(first, message(0));
            match posted {
                Posted::SlotTaken => assert_eq!(end, EndOfMessage::Write, "nobody would come back"),
                Posted::Delivered => {
                    assert_eq!(slot.take().map(|(second, _)| second), Some(message(1)))
                }
            }
        });
    }
}
